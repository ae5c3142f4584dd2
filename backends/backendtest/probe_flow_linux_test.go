package backendtest

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// openOne opens a flow that ends with the test.
func openOne(t *testing.T, b *testbed, p probe) *lab.Flow {
	t.Helper()
	flows, err := b.open(&p)
	testenv.NoError(t, err)
	t.Cleanup(flows[0].Close)
	return flows[0]
}

func wantReply(t *testing.T, when string, got lab.Reply, want string) {
	t.Helper()
	if got.String() != want {
		t.Errorf("%s: got %v, want %s", when, got, want)
	}
}

// Flows have ports that earlier ones did not have. With ports that the kernel chooses at random,
// about 70 of these flows would have one of another.
func TestFlowsHaveNewPorts(t *testing.T) {
	b := setUp(t)
	to := netip.AddrPortFrom(b.host(cluster.Local).Addr(v1.IPv4Protocol), cluster.EndpointPort)
	seen := map[netip.AddrPort]bool{}
	for range 20 {
		flows, err := b.open(&probe{from: cluster.Client, protocol: v1.ProtocolUDP, to: to, tries: 100})
		testenv.NoError(t, err)
		for i, r := range lab.AskAll(t.Context(), flows) {
			if r.Outcome != lab.Answered || seen[r.Client] {
				t.Fatalf("flow %d: got %v from %v, want an answer and a port that no flow had", i, r, r.Client)
			}
			seen[r.Client] = true
			flows[i].Close()
		}
	}
}

// A port that another socket has is not taken, and one that a test asks for is an error then.
func TestFlowsLeavePortsOfOthers(t *testing.T) {
	b := setUp(t)
	client := b.host(cluster.Client)
	for _, family := range ipaddr.Families() {
		to := netip.AddrPortFrom(b.host(cluster.Local).Addr(family), cluster.EndpointPort)
		taken := netip.AddrPortFrom(b.host(cluster.Client).Addr(family), firstSourcePort+uint16(client.flows.Load())+1)
		for i, p := range []probe{{source: taken}, {}, {source: taken}} {
			p.from, p.protocol, p.to = cluster.Client, v1.ProtocolTCP, to
			flows, err := b.open(&p)
			if i == 2 {
				if !errors.Is(err, unix.EADDRINUSE) {
					t.Errorf("port of another socket: got error %v, want %v", err, unix.EADDRINUSE)
				}
				continue
			}
			testenv.NoError(t, err)
			defer flows[0].Close()
			wantReply(t, "flow", flows[0].Ask(t.Context()), fmt.Sprintf("local sees %v", b.host(cluster.Client).Addr(family)))
		}
	}
}

// A flow keeps the translation of its first packet until its entry of connection tracking is
// removed. That is what flush is for.
func TestFlushForgetsTranslations(t *testing.T) {
	for _, family := range ipaddr.Families() {
		b := setUpVerdicts(t)
		n := findNFT(t, b.node())
		seen := b.host(cluster.Node).Addr(family)
		to := netip.AddrPortFrom(vip(family, toLocalMasked), 80)
		udp := openOne(t, b, probe{from: cluster.Client, protocol: v1.ProtocolUDP, to: to})
		tcp := openOne(t, b, probe{from: cluster.Client, protocol: v1.ProtocolTCP, to: to})
		atFirst := fmt.Sprintf("local sees %v", seen)
		wantReply(t, "UDP at first", udp.Ask(t.Context()), atFirst)
		wantReply(t, "TCP at first", tcp.Ask(t.Context()), atFirst)

		if _, err := n.run("", "flush", "chain", "inet", "verdicts", "translate"); err != nil {
			t.Fatal(err)
		}
		wantReply(t, "UDP after the rules were removed", udp.Ask(t.Context()), atFirst)
		wantReply(t, "TCP after the rules were removed", tcp.Ask(t.Context()), atFirst)

		testenv.NoError(t, b.flush())
		own := fmt.Sprintf("gateway sees %v", b.host(cluster.Client).Addr(family))
		wantReply(t, "UDP after flush", udp.Ask(t.Context()), own)
		wantReply(t, "TCP after flush", tcp.Ask(t.Context()), "reset")
	}
}
