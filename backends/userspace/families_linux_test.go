package userspace_test

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A node that cannot use IPv6 has the Services of IPv4, whenever that setting changes; and those of
// IPv6 when it can.
func TestFamilySwitchedOff(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		t.Parallel()
		n := newNetwork(t)
		s := bothProtocols()
		b := n.start(t, userspace.Options{Capture: c})
		resync := func(problems int, all ...string) {
			t.Helper()
			testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
			if found := b.CheckNode(s); len(found) != problems {
				t.Errorf("problems of the node: got %v, want %d", found, problems)
			}
			if b.Drifted(t.Context()) {
				t.Error("Drifted after Apply: got true, want false")
			}
			for _, to := range all {
				_, conn := n.wantAnswer(t, to)
				_ = conn.Close()
			}
		}
		set := func(disabled string) {
			t.Helper()
			testenv.NoError(t, n.node().Sysctl("net/ipv6/conf/lo/disable_ipv6", disabled))
			if !b.Drifted(t.Context()) {
				t.Errorf("Drifted with disable_ipv6 %s: got false, want true", disabled)
			}
		}
		set("1")
		resync(1, one)
		for range 2 {
			set("0")
			resync(0, service6, one)
			set("1")
			resync(1, one)
		}
		set("0")
		lo, err := n.node().Netlink().LinkByName("lo")
		testenv.NoError(t, err)
		testenv.NoError(t, n.node().Netlink().AddrDel(lo, &netlink.Addr{IPNet: prefix("::1/128")}))
		resync(0, one, service6)
	})
}
