package differential

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// machine has the addresses of a node, which kube-proxy reads.
type machine []netip.Addr

// InterfaceAddrs returns the addresses like the operating system.
func (m machine) InterfaceAddrs() ([]net.Addr, error) {
	var all []net.Addr
	for _, a := range m {
		all = append(all, &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())})
	}
	return all, nil
}

// nodePortCase is a list of node port addresses, a family and a machine.
type nodePortCase struct {
	list    []string
	family  v1.IPFamily
	machine machine
}

// addresses returns the addresses of the family that kube-proxy serves node ports at.
func (c nodePortCase) addresses(t *testing.T) []netip.Addr {
	t.Helper()
	found, err := proxyutil.NewNodePortAddresses(c.family, c.list).GetNodeIPs(c.machine)
	testenv.NoError(t, err)
	var all []netip.Addr
	for _, ip := range found {
		a, _ := netip.AddrFromSlice(ip)
		all = append(all, a.Unmap())
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// nodePortDecisions returns the decisions, which change the addresses of kube-proxy.
func nodePortDecisions() []struct {
	name  string
	apply func(nodePortCase, []netip.Addr) []netip.Addr
} {
	return []struct {
		name  string
		apply func(nodePortCase, []netip.Addr) []netip.Addr
	}{
		{"primaryByDefault", primaryByDefault},
		{"familyWithoutPrefix", familyWithoutPrefix},
		{"noLoopback", noLoopback},
	}
}

// primaryByDefault treats an empty list as the primary addresses of the node, as
// kube-proxy does in mode nftables, but not in mode iptables.
func primaryByDefault(c nodePortCase, all []netip.Addr) []netip.Addr {
	if len(c.list) > 0 {
		return all
	}
	for _, a := range c.machine {
		if a.Is4() == (c.family == v1.IPv4Protocol) && !a.IsLoopback() {
			return []netip.Addr{a}
		}
	}
	return nil
}

// familyWithoutPrefix serves no node ports in a family that the list does not mention.
// kube-proxy then serves them at all addresses, so that a list which names the primary
// address of the one family opens the other.
func familyWithoutPrefix(c nodePortCase, all []netip.Addr) []netip.Addr {
	if len(c.list) > 0 && !slices.ContainsFunc(c.list, func(text string) bool {
		return netip.MustParsePrefix(text).Addr().Is4() == (c.family == v1.IPv4Protocol)
	}) {
		return nil
	}
	return all
}

// noLoopback serves no node ports at loopback addresses: packets from there can be
// forwarded only with a setting that opens the loopback addresses to the network.
func noLoopback(_ nodePortCase, all []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(all), netip.Addr.IsLoopback)
}

// TestNodePortAddresses compares the addresses of a machine at which node ports answer.
func TestNodePortAddresses(t *testing.T) {
	g := newGenerator(testenv.Random(t))
	needed := newDecisions()
	for range 3000 {
		c := g.nodePortCase()
		want := c.addresses(t)
		for _, d := range nodePortDecisions() {
			now := d.apply(c, want)
			if !slices.Equal(now, want) {
				needed.countUse(d.name, 1)
			}
			want = now
		}
		if got := served(t, c); !slices.Equal(got, want) {
			t.Fatalf("%v of %v in %s: got %v, want %v", c.list, c.machine, c.family, got, want)
		}
	}
	reportDecisions(t, needed, "primaryByDefault", "familyWithoutPrefix", "noLoopback")
}

func (g *generator) nodePortCase() nodePortCase {
	c := nodePortCase{family: objects.OneOf(g.Rand, families()...)}
	for range g.IntN(4) {
		c.list = append(c.list, objects.OneOf(g.Rand, "192.0.2.0/24", "192.0.2.1/32", "10.0.0.0/8", "10.1.0.0/16", "127.0.0.0/8", "127.0.0.1/32", "0.0.0.0/0", "0.0.0.0/1",
			"2001:db8::/32", "2001:db8::1/128", "fd00::/8", "::1/128", "::/0", "192.0.2.77/28"))
	}
	all := machine{}
	for _, text := range []string{"192.0.2.1", "192.0.2.70", "10.1.2.3", "10.2.0.1", "127.0.0.1", "127.0.0.53", "2001:db8::1", "2001:db8::2", "fd00::7", "::1"} {
		if g.Chance(2) {
			all = append(all, netip.MustParseAddr(text))
		}
	}
	g.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	c.machine = all
	return c
}

// served returns the addresses of the machine at which a node port of this repository answers.
func served(t *testing.T, c nodePortCase) []netip.Addr {
	t.Helper()
	choice, err := proxy.ParseNodePortAddresses(c.list...)
	testenv.NoError(t, err)
	v := newVipkit(proxy.TrackerOptions{NodePortAddresses: choice})
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	for _, a := range c.machine {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a.String()})
	}
	v.nodeChanged(n)
	v.service(nil, &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeNodePort, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00:96::1"}, IPFamilies: families(),
		Ports: []v1.ServicePort{{Port: 80, NodePort: 30080, Protocol: v1.ProtocolTCP}},
	}})
	v.sync()
	var all []netip.Addr
	for _, a := range c.machine {
		if a.Is4() != (c.family == v1.IPv4Protocol) {
			continue
		}
		verdict := proxy.Route(v.snapshot, proxy.Packet{
			Protocol: v1.ProtocolTCP, Source: netip.AddrPortFrom(a, 40000), Destination: netip.AddrPortFrom(a, 30080), ToNode: true,
		})
		if verdict.Name.Name == "web" {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}
