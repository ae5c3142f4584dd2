package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// The rules of kube-proxy go in both flavours of iptables, whichever is the default.
func TestCleanupOfBothFlavours(t *testing.T) {
	flavours := [...]string{"iptables-legacy", "iptables-nft"}
	for _, f := range flavours {
		need(t, f)
	}
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	node := netnstest.NewNS(t)
	run := func(args ...string) string {
		t.Helper()
		return runIn(t, node, args...)
	}
	for _, f := range flavours {
		run(f, "-t", "nat", "-N", "KUBE-SERVICES")
		run(f, "-t", "nat", "-A", "PREROUTING", "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES")
		run(f, "-t", "nat", "-N", "OTHER")
	}
	if status := start(t, node, "-cleanup").Wait(); status != 0 {
		t.Errorf("-cleanup ends with %d, wanted 0", status)
	}
	for _, f := range flavours {
		got := run(f, "-t", "nat", "-S")
		if strings.Contains(got, "KUBE-") || !strings.Contains(got, "-N OTHER") {
			t.Errorf("%s has\n%swanted no chain of kube-proxy, and the other one", f, got)
		}
	}
}

// Rules of kube-proxy that could not be removed at first are removed later, without a
// restart.
func TestLeftoversAreTriedAgain(t *testing.T) {
	const iptables = "iptables-legacy"
	need(t, iptables)
	w := newWorld(t, "mode: nftables\n")
	folder := filepath.Join(t.TempDir(), "missing")
	lock := filepath.Join(folder, "lock")
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	runIn(t, w.node.NS, iptables, "-t", "nat", "-N", "KUBE-SERVICES")
	t.Setenv("XTABLES_LOCKFILE", lock)
	p := w.start()
	p.AwaitEach([]string{"rules of another mode", "are left", lock}, []string{"msg=serving"})
	w.wantAnswer(virtualIP, "8080")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	var got string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got = runIn(t, w.node.NS, iptables, "-t", "nat", "-S"); !strings.Contains(got, "KUBE-") {
			break
		}
	}
	if strings.Contains(got, "KUBE-") {
		t.Errorf("%s has\n%swanted no chain of kube-proxy", iptables, got)
	}
	p.Terminate(stopped)
	if n := p.Count("msg=serving"); n != 1 {
		t.Errorf("it told %d times that it serves, wanted once", n)
	}
}
