package conntrack

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// newKernelCleaner returns a Cleaner in a new namespace.
func newKernelCleaner(t testing.TB, o Options) (*netns.NS, *Cleaner) {
	t.Helper()
	ns := netnstest.NewNS(t)
	return ns, netnstest.Open(t, ns, func() (*Cleaner, error) { return New(o) })
}

// track creates the entry of a flow.
func track(t testing.TB, ns *netns.NS, source, dest, server netip.AddrPort) {
	t.Helper()
	family := netlink.InetFamily(unix.AF_INET)
	if dest.Addr().Is6() {
		family = unix.AF_INET6
	}
	flow := &netlink.ConntrackFlow{
		FamilyType: uint8(family), TimeOut: 600,
		Forward: netlink.IPTuple{
			Protocol: unix.IPPROTO_UDP, SrcIP: net.IP(source.Addr().AsSlice()), SrcPort: source.Port(),
			DstIP: net.IP(dest.Addr().AsSlice()), DstPort: dest.Port(),
		},
		Reverse: netlink.IPTuple{
			Protocol: unix.IPPROTO_UDP, SrcIP: net.IP(server.Addr().AsSlice()), SrcPort: server.Port(),
			DstIP: net.IP(source.Addr().AsSlice()), DstPort: source.Port(),
		},
	}
	if err := ns.Netlink().ConntrackCreate(netlink.ConntrackTable, family, flow); err != nil {
		t.Fatalf("create flow %v to %v: %v", source, dest, err)
	}
}

// tracked returns the servers of all flows to an address, sorted.
func tracked(t testing.TB, ns *netns.NS, family netlink.InetFamily, dest netip.AddrPort) (servers []netip.AddrPort) {
	t.Helper()
	flows, err := ns.Netlink().ConntrackTableList(netlink.ConntrackTable, family)
	testenv.NoError(t, err)
	for _, f := range flows {
		to, _ := netip.AddrFromSlice(f.Forward.DstIP)
		if netip.AddrPortFrom(to.Unmap(), f.Forward.DstPort) == dest {
			server, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
			servers = append(servers, netip.AddrPortFrom(server.Unmap(), f.Reverse.SrcPort))
		}
	}
	slices.SortFunc(servers, netip.AddrPort.Compare)
	return servers
}

func TestKernel(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		named               v1.IPFamily
		family              netlink.InetFamily
		vip, near           string
		source, dead, alive string
		seen                int
	}{
		"IPv4": {v1.IPv4Protocol, unix.AF_INET, vip, "10.96.0.10:54", "198.51.100.7:4000", a, b, 5},
		"IPv6": {v1.IPv6Protocol, unix.AF_INET6, "[fd00:96::10]:53", "[fd00:96::11]:53", "[2001:db8::7]:4000", "[fd00:10::2]:5353", "[fd00:10::3]:5353", 5},
	} {
		t.Run(name, func(t *testing.T) {
			var account Account
			ns, c := newKernelCleaner(t, Options{Observe: func(a Account) { account = a }})
			source, at := netip.MustParseAddrPort(tc.source), netip.MustParseAddrPort(tc.vip)
			for i, server := range snapshots.AddrPorts(tc.dead, tc.alive, tc.dead, tc.vip) {
				track(t, ns, netip.AddrPortFrom(source.Addr(), uint16(4000+i)), at, server)
			}
			near := netip.MustParseAddrPort(tc.near)
			track(t, ns, source, near, near)

			old := port("dns", v1.ProtocolUDP, list(tc.vip), list(tc.dead, tc.alive))
			new := port("dns", v1.ProtocolUDP, list(tc.vip), list(tc.alive))
			mustClean(t, c, proxy.NewSnapshot(node(), old), proxy.NewSnapshot(node(), new))
			if got, want := tracked(t, ns, tc.family, at), snapshots.AddrPorts(tc.alive, tc.vip); !slices.Equal(got, want) {
				t.Errorf("got flows to %v, want %v", got, want)
			}
			if got, want := tracked(t, ns, tc.family, near), snapshots.AddrPorts(tc.near); !slices.Equal(got, want) {
				t.Errorf("got foreign flows to %v, want %v", got, want)
			}
			account.Duration = 0
			if want := (Account{Family: tc.named, Frontends: 1, Dumps: 1, Flows: tc.seen, Removed: 2}); account != want {
				t.Errorf("got account %+v, want %+v", account, want)
			}
		})
	}
}

// remove does not remove a newer flow with the same tuple.
func TestRemoveChecksIdentity(t *testing.T) {
	t.Parallel()
	ns, c := newKernelCleaner(t, Options{})
	source, at := netip.MustParseAddrPort("198.51.100.7:4000"), netip.MustParseAddrPort(vip)
	track(t, ns, source, at, netip.MustParseAddrPort(a))
	var seen []flow
	if err := c.table.dump(filter{v1.IPv4Protocol, protoUDP}, func(f flow) { seen = append(seen, f) }); err != nil || len(seen) != 1 || len(seen[0].id) != 4 {
		t.Fatalf("dump: got flows %v and error %v, want one flow with its identity", seen, err)
	}
	testenv.NoError(t, c.table.remove(seen[0]))
	if err := c.table.remove(seen[0]); err != nil {
		t.Errorf("remove a missing flow: got error %v, want none", err)
	}
	track(t, ns, source, at, netip.MustParseAddrPort(b))
	seen[0].id = []byte{1, 2, 3, 4} // The kernel derives identities from memory addresses, which it reuses.
	if err := c.table.remove(seen[0]); err != nil {
		t.Errorf("remove a flow whose tuple another one has: got error %v, want none", err)
	}
	if got := tracked(t, ns, unix.AF_INET, at); !slices.Equal(got, snapshots.AddrPorts(b)) {
		t.Errorf("got flows to %v, want %v", got, snapshots.AddrPorts(b))
	}
}

// Foreign flows stay, and cost nothing unless flows may be stale.
func TestForeignFlows(t *testing.T) {
	t.Parallel()
	const foreign = 10_000
	var account Account
	ns, c := newKernelCleaner(t, Options{Foreign: isForeign, Observe: func(a Account) { account = a }})
	for i := range foreign {
		source := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 12), byte(i >> 4)}), uint16(1024+i&15))
		at := netip.MustParseAddrPort("203.0.113.5:53")
		track(t, ns, source, at, at)
	}
	at := netip.MustParseAddrPort(vip)
	for i := range 10 {
		track(t, ns, netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), uint16(4000+i)), at, snapshots.AddrPorts(a, b)[i%2])
	}
	with := func(servers ...string) proxy.Snapshot {
		return proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip, ":30053"), servers), port("web", v1.ProtocolTCP, list("10.96.0.11:80"), servers))
	}
	for _, step := range []struct {
		what     string
		old, new proxy.Snapshot
		want     Account
	}{
		{"nothing changed", with(a, b), with(a, b), Account{}},
		{"endpoint added", with(a), with(a, b), Account{}},
		{"endpoint removed", with(a, b), with(b), Account{Family: v1.IPv4Protocol, Frontends: 2, Dumps: 1, Flows: foreign + 10, Removed: 5}},
		{"takeover", proxy.Snapshot{}, with(b), Account{Family: v1.IPv4Protocol, Frontends: 2, Dumps: 2, Flows: foreign + 5}},
	} {
		account = Account{}
		mustClean(t, c, step.old, step.new)
		t.Logf("%s: %v", step.what, account.Duration)
		account.Duration = 0
		if account != step.want {
			t.Errorf("%s: got account %+v, want %+v", step.what, account, step.want)
		}
	}
	if got := len(tracked(t, ns, unix.AF_INET, netip.MustParseAddrPort("203.0.113.5:53"))); got != foreign {
		t.Errorf("got %d foreign flows, want all %d", got, foreign)
	}
}

// Flows of which only one direction is in another zone are other programs' too.
func TestZonesOfOneDirection(t *testing.T) {
	t.Parallel()
	ns := lab.New(t, lab.Host{Name: "node", Rules: `table ip t { chain c { type filter hook output priority -300
		udp sport 4001 ct original zone set 5; udp sport 4002 ct zone set 6; udp dport 53 ct state new; }; }`}).NS("node")
	c := netnstest.Open(t, ns, func() (*Cleaner, error) { return New(Options{}) })
	testenv.NoError(t, ns.AddAddress("lo", netip.MustParsePrefix("10.96.0.10/32")))
	at := netip.MustParseAddrPort(vip)
	for _, from := range []string{"10.96.0.10:4000", "10.96.0.10:4001", "10.96.0.10:4002"} {
		socket, err := ns.ListenPacket(t.Context(), "udp", from)
		testenv.NoError(t, err)
		_, err = socket.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(at))
		testenv.NoError(t, errors.Join(err, socket.Close()))
	}
	if got := len(tracked(t, ns, unix.AF_INET, at)); got != 3 {
		t.Fatalf("got %d flows, want three", got)
	}
	mustClean(t, c, proxy.Snapshot{}, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))))
	if got := len(tracked(t, ns, unix.AF_INET, at)); got != 2 {
		t.Errorf("got %d flows left, want the two in other zones", got)
	}
}
