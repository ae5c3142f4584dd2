package main

import (
	"path/filepath"
	"strings"
	"testing"

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
