package nftables

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func identity(name string, mark uint32, priority int32) backends.Identity {
	return backends.Identity{Name: name, Mark: mark, Priority: priority}
}

// testNodes returns nodes that identify pods by different criteria, or not at all.
func testNodes() []*proxy.Node {
	nodes := []*proxy.Node{stagetest.Node(), stagetest.Node(), stagetest.Node(), stagetest.Node()}
	nodes[1].LocalTraffic = proxy.LocalTraffic{}
	nodes[2].LocalTraffic = proxy.LocalTraffic{Interface: "cni0"}
	nodes[3].LocalTraffic = proxy.LocalTraffic{InterfacePrefix: "veth"}
	return nodes
}

func allowedSources(fam v1.IPFamily) []netip.Prefix {
	if fam == v1.IPv6Protocol {
		return snapshots.Prefixes("2001:db8::/32")
	}
	return snapshots.Prefixes("192.0.2.0/24", "198.51.100.0/25")
}

// stage is a network namespace with a backend in it.
type stage struct{ *stagetest.Stage[Options] }

func newStage(t testing.TB) *stage {
	t.Helper()
	return &stage{stagetest.NewStage(t, Options{}, New)}
}

// repair applies from the zero snapshot, and once more if the first Apply reports that the
// dataplane is lost.
func (s *stage) repair(t testing.TB, want proxy.Snapshot) {
	t.Helper()
	s.Applied = proxy.Snapshot{}
	err := s.Backend.Apply(t.Context(), s.Applied, want)
	if errors.Is(err, proxy.ErrDataplaneLost) {
		t.Logf("trying again after: %v", err)
		err = s.Backend.Apply(t.Context(), s.Applied, want)
	}
	if err != nil {
		t.Fatalf("Apply from the zero snapshot: got error %v, want none", err)
	}
	s.Applied = want
}

// conn opens a connection for the test itself.
func (s *stage) conn(t testing.TB) (c *nfnetlink.Conn) {
	t.Helper()
	err := s.NS.Do(func() (err error) {
		c, err = nfnetlink.Open()
		return err
	})
	testenv.NoError(t, err)
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
	testenv.NoError(t, err)
	return id
}

// tryNft runs the program nft in the namespace.
func (s *stage) tryNft(t testing.TB, input string, args ...string) (string, error) {
	t.Helper()
	return netnstest.Run(t, s.NS, input, netnstest.NFT(t), args...)
}

func (s *stage) nft(t testing.TB, args ...string) string {
	t.Helper()
	out, err := s.tryNft(t, "", args...)
	testenv.NoError(t, err)
	return out
}

// load loads a ruleset with nft.
func (s *stage) load(t testing.TB, ruleset string) {
	t.Helper()
	if _, err := s.tryNft(t, ruleset, "-f", "-"); err != nil {
		t.Fatalf("%v, loading:\n%s", err, ruleset)
	}
}

// listing returns the ruleset of the namespace with sorted tables, chains, sets and elements,
// whose order has no meaning. It replaces the second name of a table by the first one.
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
			table = strings.Replace(line, secondSuffix+" {", " {", 1)
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

// holds compares the ruleset of the namespace with a listing.
func (s *stage) holds(t testing.TB, want, when string) {
	t.Helper()
	if diff := cmp.Diff(want, s.listing(t)); diff != "" {
		t.Errorf("%s: ruleset (-want +got):\n%s", when, diff)
	}
}

// withoutSlots removes the slots of endpoints, which depend on earlier changes.
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
