package kinds_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
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

// What kube-proxy has left in either flavour of iptables is named with the command that removes it. A table that
// does not exist is not made.
func TestChainsOfKubeProxyAreNamed(t *testing.T) {
	snapshot := proxy.Snapshot{}
	for _, c := range []struct{ flavour, chain, remedy string }{
		{"nft", "KUBE-SERVICES", "kube-proxy --cleanup"},
		{"legacy", "KUBE-SERVICES", "kube-proxy --cleanup"},
	} {
		ns := netnstest.NewNS(t)
		i := netnstest.Open(t, ns, func() (*kinds.Instance, error) { return kinds.Open(kinds.NFTables.Defaults(), kinds.NFTables) })
		if found := i.CheckNode(snapshot); len(found) > 0 {
			t.Errorf("%+v: before there is a chain: got problems %v, want none", c, found)
		}
		if tables, _ := netnstest.Run(t, ns, "", "cat", "/proc/self/net/ip_tables_names", "/proc/self/net/ip6_tables_names"); strings.Contains(tables, "nat") {
			t.Errorf("%+v: tables of the legacy flavour after a look: got %q, want no table nat", c, tables)
		}
		for _, program := range []string{"iptables-", "ip6tables-"} {
			if _, err := netnstest.Run(t, ns, "", program+c.flavour, "-t", "nat", "-N", c.chain); err != nil {
				t.Fatal(err)
			}
		}
		found := i.CheckNode(snapshot)
		if len(found) != 1 {
			t.Errorf("%+v: got problems %v, want one", c, found)
			continue
		}
		for _, program := range []string{"iptables-", "ip6tables-"} {
			if object := fmt.Sprintf("chain %s of %s%s", c.chain, program, c.flavour); !strings.Contains(found[0].Error(), object) {
				t.Errorf("%+v: got problem %q, want %q in it", c, found[0], object)
			}
		}
		if !strings.Contains(found[0].Error(), c.remedy) {
			t.Errorf("%+v: got problem %q, want %q in it", c, found[0], c.remedy)
		}
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
