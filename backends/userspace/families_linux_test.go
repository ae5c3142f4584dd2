package userspace_test

import (
	"net"
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
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		t.Run(capture.String(), func(t *testing.T) {
			t.Parallel()
			n := newBridged(t, false)
			s := bridgedServices()
			b := n.start(t, userspace.Options{Capture: capture})
			n.serve(t, podServer)
			n.serve(t, podServer6)
			reach := func(all ...string) {
				t.Helper()
				for _, to := range all {
					if _, _, c, err := n.ask(t, to); err != nil {
						t.Errorf("connection to %s: got error %v, want none", to, err)
					} else {
						_ = c.Close()
					}
				}
			}
			set := func(value string) { n.disableIPv6(t, value) }
			resync := func(problems int) {
				t.Helper()
				testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
				if found := b.CheckNode(s); len(found) != problems {
					t.Errorf("problems of the node: got %v, want %d", found, problems)
				}
				if b.Drifted(t.Context()) {
					t.Error("Drifted after Apply: got true, want false")
				}
			}
			set("1")
			resync(1)
			reach(one)
			for range 2 {
				set("0")
				if !b.Drifted(t.Context()) {
					t.Error("Drifted after IPv6 was switched on: got false, want true")
				}
				resync(0)
				reach(service6)
				reach(one)
				set("1")
				if !b.Drifted(t.Context()) {
					t.Error("Drifted after IPv6 was switched off: got false, want true")
				}
				resync(1)
				reach(one)
			}
			set("0")
			n.removeLoopbackAddress(t)
			resync(0)
			reach(one, service6)
		})
	}
}

// removeLoopbackAddress removes the address ::1 of the node.
func (n network) removeLoopbackAddress(t *testing.T) {
	t.Helper()
	lo, err := n.node.Netlink().LinkByName("lo")
	if err == nil {
		err = n.node.Netlink().AddrDel(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)}})
	}
	testenv.NoError(t, err)
}

// disableIPv6 sets whether the interface lo of the node has IPv6.
func (n network) disableIPv6(t *testing.T, value string) {
	t.Helper()
	testenv.NoError(t, n.node.Sysctl("net/ipv6/conf/lo/disable_ipv6", value))
}
