package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// TestDriftIsRepairedAtOnce checks that drift is repaired long before the next resync, right
// after changes of every kind, and also if another program changes the rules twice, as
// `systemctl restart nftables` does.
func TestDriftIsRepairedAtOnce(t *testing.T) {
	t.Parallel()
	for name, choice := range map[string][]string{
		"nftables": nil, "tproxy": {"-backend", "userspace"}, "redirect": {"-backend", "userspace", "-capture", "redirect"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driftIsRepaired(t, map[bool]string{true: "vipkit", false: "vipkit-userspace"}[choice == nil], choice...)
		})
	}
}

func driftIsRepaired(t *testing.T, table string, choice ...string) {
	t.Helper()
	n := newNetwork(t)
	path := filepath.Join(t.TempDir(), "web.yaml")
	manifest := demo(t)
	sticky := replace(t, manifest, "  clusterIP: 10.96.0.10", "  clusterIP: 10.96.0.10\n  sessionAffinity: ClientIP")
	write(t, path, manifest)
	p := n.start(t, flags(path, choice...)...)
	p.Await("msg=sync", "full=true", "ports=1")
	for i, script := range []string{
		"flush ruleset", "add table ip " + table + " { flags dormant; }", "delete table ip " + table, "flush ruleset", "flush ruleset",
	} {
		next := [...]string{sticky, manifest}[i%2]
		write(t, path, next)
		p.Await("msg=sync")
		for range 2 {
			if _, err := netnstest.Run(t, n.NS, "", netnstest.NFT(t), script); err != nil && i != 2 {
				t.Fatal(err)
			}
		}
		n.wantReplySoon(t, script)
	}
	p.Terminate(stopped)
}

// wantReplySoon waits for a reply at the virtual IP, which must be long before a resync.
func (n network) wantReplySoon(t *testing.T, after string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), resync/3)
	defer cancel()
	start := time.Now()
	for {
		one, stop := context.WithTimeout(ctx, time.Second)
		_, err := n.Ask(one, virtualIP)
		stop()
		if err == nil {
			t.Logf("after %q: a reply after %v", after, time.Since(start).Round(time.Millisecond))
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("after %q: got no reply within %v, want one; last error: %v", after, resync/3, err)
		}
	}
}
