package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

func identity(name string, mark uint32, priority int32) backends.Identity {
	return backends.Identity{Name: name, Mark: mark, Priority: priority}
}

func testNode() *proxy.Node {
	return &proxy.Node{
		NodePorts:    proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: prefixes("10.0.0.0/9", "fd00:10::/32")},
		ServiceCIDRs: prefixes("10.128.0.0/9", "fd00:96::/32"),
	}
}

// testNodes are nodes that tell pods by different means, or cannot.
func testNodes() []*proxy.Node {
	nodes := []*proxy.Node{testNode(), testNode(), testNode(), testNode()}
	nodes[1].LocalTraffic = proxy.LocalTraffic{}
	nodes[2].LocalTraffic = proxy.LocalTraffic{Interface: "cni0"}
	nodes[3].LocalTraffic = proxy.LocalTraffic{InterfacePrefix: "veth"}
	return nodes
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func allowedSources(fam v1.IPFamily) []netip.Prefix {
	if fam == v1.IPv6Protocol {
		return prefixes("2001:db8::/32")
	}
	return prefixes("192.0.2.0/24", "198.51.100.0/25")
}

// clusterIP is an address from the service range, hostIP one of a pod.
func clusterIP(fam v1.IPFamily, i int) netip.Addr {
	if fam == v1.IPv6Protocol {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x96, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i + 1)})
	}
	i++
	return netip.AddrFrom4([4]byte{10, byte(128 + i>>16), byte(i >> 8), byte(i)})
}

func hostIP(fam v1.IPFamily, i int) netip.Addr {
	if fam == v1.IPv6Protocol {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

func endpoint(fam v1.IPFamily, i int, port uint16) *endpoints.Endpoint {
	return &endpoints.Endpoint{Addr: netip.AddrPortFrom(hostIP(fam, i), port), Ready: true, Serving: true}
}

func forward(m proxy.Masquerade) proxy.TrafficRoute {
	return proxy.TrafficRoute{Action: proxy.Forward, Masquerade: m}
}

// newPort makes service port i with a ClusterIP and n endpoints, which no other
// port has.
func newPort(fam v1.IPFamily, i, n int) *proxy.ServicePort {
	p := &proxy.ServicePort{
		Name: proxy.ServicePortName{
			NamespacedName: types.NamespacedName{Namespace: "test", Name: fmt.Sprintf("service-%05d", i)},
			Protocol:       v1.ProtocolTCP, Family: fam,
		},
		Frontends: []proxy.Frontend{{
			Kind: proxy.ClusterIP, Addr: netip.AddrPortFrom(clusterIP(fam, i), 80),
			FromInside: forward(proxy.MasqueradeNonPods), FromOutside: forward(proxy.MasqueradeAlways),
		}},
	}
	for e := range n {
		p.Cluster = append(p.Cluster, endpoint(fam, 1+i*64+e, 8080))
	}
	return p
}

func nodePort(fam v1.IPFamily, port uint16) proxy.Frontend {
	addr := netip.IPv4Unspecified()
	if fam == v1.IPv6Protocol {
		addr = netip.IPv6Unspecified()
	}
	return proxy.Frontend{
		Kind: proxy.NodePort, Addr: netip.AddrPortFrom(addr, port),
		FromInside: forward(proxy.MasqueradeAlways), FromOutside: forward(proxy.MasqueradeAlways),
	}
}

// stage is a network namespace with a backend in it.
type stage struct {
	ns      *netns.NS
	options Options
	backend proxy.Backend
	applied proxy.Snapshot
}

func newStage(t testing.TB, o Options) *stage {
	t.Helper()
	s := &stage{ns: netnstest.NewNS(t), options: o}
	s.restart(t)
	return s
}

// restart puts a new backend in the place of the one before, which knows
// nothing.
func (s *stage) restart(t testing.TB) {
	t.Helper()
	s.backend, s.applied = s.newBackend(t, s.options), proxy.Snapshot{}
}

func (s *stage) newBackend(t testing.TB, o Options) (b proxy.Backend) {
	t.Helper()
	err := s.ns.Do(func() (err error) {
		b, err = New(o)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (s *stage) apply(t testing.TB, want proxy.Snapshot) {
	t.Helper()
	if err := s.backend.Apply(t.Context(), s.applied, want); err != nil {
		t.Fatalf("Apply: got error %v, want none", err)
	}
	s.applied = want
}

// repair applies from the zero snapshot, a second time if the first one finds
// that everything must be written anew.
func (s *stage) repair(t testing.TB, want proxy.Snapshot) {
	t.Helper()
	s.applied = proxy.Snapshot{}
	err := s.backend.Apply(t.Context(), s.applied, want)
	if errors.Is(err, proxy.ErrDataplaneLost) {
		t.Logf("tried again after: %v", err)
		err = s.backend.Apply(t.Context(), s.applied, want)
	}
	if err != nil {
		t.Fatalf("Apply from the zero snapshot: got error %v, want none", err)
	}
	s.applied = want
}

// conn is a connection of the test's own.
func (s *stage) conn(t testing.TB) (c *nfnetlink.Conn) {
	t.Helper()
	err := s.ns.Do(func() (err error) {
		c, err = nfnetlink.Open()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (s *stage) generation(t testing.TB, c *nfnetlink.Conn) uint32 {
	t.Helper()
	id, err := c.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// tryNft runs the program nft in the namespace.
func (s *stage) tryNft(t testing.TB, input string, args ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), netnstest.NFT(t), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	err := s.ns.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, &errs)
	}
	return out.String(), nil
}

func (s *stage) nft(t testing.TB, args ...string) string {
	t.Helper()
	out, err := s.tryNft(t, "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// load has nft read a ruleset.
func (s *stage) load(t testing.TB, ruleset string) {
	t.Helper()
	if _, err := s.tryNft(t, ruleset, "-f", "-"); err != nil {
		t.Fatalf("%v, loading:\n%s", err, ruleset)
	}
}

// listing is the ruleset of the namespace, with everything in order whose order
// means nothing: tables, chains, sets and elements. It does not tell which of
// its two names a table has.
func (s *stage) listing(t testing.TB) string {
	t.Helper()
	return inOrder(s.nft(t, "--stateless", "list", "ruleset"))
}

func inOrder(ruleset string) string {
	var blocks []string
	table, block := "", ""
	for line := range strings.Lines(ruleset) {
		switch {
		case strings.HasPrefix(line, "table "):
			table = strings.Replace(line, twinSuffix+" {", " {", 1)
		case line == "\n" || line == "}\n":
		case line == "\t}\n":
			blocks = append(blocks, table+elementsInOrder(block)+line)
			block = ""
		default:
			block += line
		}
	}
	slices.Sort(blocks)
	return strings.Join(blocks, "\n")
}

func elementsInOrder(block string) string {
	head, elements, found := strings.Cut(block, "elements = {")
	if !found {
		return block
	}
	list := strings.Split(strings.TrimSuffix(strings.TrimSpace(elements), "}"), ",")
	for i := range list {
		list[i] = strings.Join(strings.Fields(list[i]), " ")
	}
	slices.Sort(list)
	return head + "\nelements = {\n" + strings.Join(list, "\n") + "\n}\n"
}

// holds compares the ruleset of the namespace with what it should be.
func (s *stage) holds(t testing.TB, want, when string) {
	t.Helper()
	if diff := cmp.Diff(want, s.listing(t)); diff != "" {
		t.Errorf("%s: the ruleset (-want +got):\n%s", when, diff)
	}
}

// withoutSlots blots out the places of endpoints, which depend on the history.
func withoutSlots(listing string) string {
	lines := strings.Split(listing, "\n")
	start := 0
	for i, line := range lines {
		key, endpoint, found := strings.Cut(line, " : ")
		fields := strings.Split(key, " . ")
		if !found || strings.Contains(line, "typeof") || strings.ContainsAny(endpoint, "gjd") {
			continue
		}
		lines[i] = strings.Join(fields[:len(fields)-1], " . ") + " : " + endpoint
	}
	for i, line := range lines {
		switch line {
		case "elements = {":
			start = i + 1
		case "}":
			slices.Sort(lines[start:i])
		}
	}
	return strings.Join(lines, "\n")
}
