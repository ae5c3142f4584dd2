package kinds_test

import (
	"errors"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// No two kinds share a bit of marks, and a table of nf_tables belongs to one kind. The two flavours
// of iptables are one backend.
func TestKindsShareNoDefaults(t *testing.T) {
	marks := map[uint32]kinds.Kind{}
	for _, k := range []kinds.Kind{kinds.NFTables, kinds.IPTablesNFT, kinds.IPVS, kinds.Userspace} {
		d := k.Defaults()
		if other, taken := marks[d.Mark]; taken {
			t.Errorf("bit %#x: got it for %s and %s, want it for one", d.Mark, k, other)
		}
		marks[d.Mark] = k
	}
	if n, u := kinds.NFTables.Defaults().Name, kinds.Userspace.Defaults().Name; n == u || n+kinds.SecondSuffix == u {
		t.Errorf("name of tables: got %q for two kinds, want it for one", n)
	}
}

// Of many instances of a kind, as of processes that overlap in restarts, each opens; and another kind
// waits for the end of the last one.
func TestInstancesOfOneKindOverlap(t *testing.T) {
	ns := netnstest.NewNS(t)
	open := func(k kinds.Kind) (i *kinds.Instance) {
		return netnstest.Open(t, ns, func() (*kinds.Instance, error) { return kinds.Open(k.Defaults(), k) })
	}
	var several []*kinds.Instance
	for range 20 {
		several = append(several, open(kinds.NFTables))
	}
	other := open(kinds.Userspace)
	testenv.NoError(t, other.Succeed(t.Context(), proxy.Snapshot{}, nil))
	for _, i := range several {
		if other.Ended() {
			t.Error("Ended while an instance of the other kind runs: got true, want false")
		}
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	}
	if !other.Ended() {
		t.Error("Ended after the last instance of the other kind has ended: got false, want true")
	}
}

// Removing rules and routes that do not exist is no error; other errors of the kernel are.
func TestRoutingThatIsGone(t *testing.T) {
	ns := netnstest.NewNS(t)
	h := ns.Netlink()
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = unix.AF_INET, 766, 7_690_006
	route := netlink.Route{Table: 7_690_006, LinkIndex: 1, Dst: &net.IPNet{IP: net.IPv4(192, 0, 2, 1).To4(), Mask: net.CIDRMask(32, 32)}}
	if err := (kinds.Routing{Rules: []netlink.Rule{*rule}, Routes: []netlink.Route{route}}).Remove(h); err != nil {
		t.Errorf("what does not exist: got error %v, want none", err)
	}
	route.Dst.Mask = net.CIDRMask(1, 32) // the address has more bits than the mask
	if err := (kinds.Routing{Routes: []netlink.Route{route}}).Remove(h); !errors.Is(err, unix.EINVAL) {
		t.Errorf("an invalid route: got error %v, want %v", err, unix.EINVAL)
	}
}
