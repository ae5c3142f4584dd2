package backendtest

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// openOne opens a flow that ends with the test.
func openOne(t *testing.T, b *testbed, p probe) *flow {
	t.Helper()
	flows, err := b.open(&p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(flows[0].Close)
	return flows[0]
}

func wantReply(t *testing.T, when string, got reply, want string) {
	t.Helper()
	if got.String() != want {
		t.Errorf("%s: %v, want %s", when, got, want)
	}
}

// A flow can be asked again and again.
func TestFlowIsAskedAgain(t *testing.T) {
	b := setUp(t)
	for _, family := range families() {
		to := netip.AddrPortFrom(b.addr(atRemote, family), endpointPort)
		for _, protocol := range append(transports(), icmp) {
			want := "answered"
			if protocol != icmp {
				want = fmt.Sprintf("remote sees %v", b.addr(atClient, family))
			}
			f := openOne(t, b, probe{from: atClient, protocol: protocol, to: to})
			first := f.ask()
			for i := range 3 {
				r := f.ask()
				wantReply(t, fmt.Sprintf("%s to %v, question %d", protocol, to, i+1), r, want)
				if r.client != first.client {
					t.Errorf("question %d came from %v, the first from %v", i+1, r.client, first.client)
				}
			}
		}
	}
}

// A flow meets the rules that were there when it began, until the node forgets
// it. That is what flush is for.
func TestFlushForgetsTranslations(t *testing.T) {
	for _, family := range families() {
		b := setUpVerdicts(t)
		n := findNFT(t, b.node())
		seen := b.addr(atNode, family)
		to := netip.AddrPortFrom(vip(family, toLocalMasked), 80)
		udp := openOne(t, b, probe{from: atClient, protocol: v1.ProtocolUDP, to: to})
		tcp := openOne(t, b, probe{from: atClient, protocol: v1.ProtocolTCP, to: to})
		atFirst := fmt.Sprintf("local sees %v", seen)
		wantReply(t, "UDP at first", udp.ask(), atFirst)
		wantReply(t, "TCP at first", tcp.ask(), atFirst)

		if _, err := n.run(t.Context(), "", "flush", "chain", "inet", "verdicts", "translate"); err != nil {
			t.Fatal(err)
		}
		wantReply(t, "UDP after the rules have gone", udp.ask(), atFirst)
		wantReply(t, "TCP after the rules have gone", tcp.ask(), atFirst)

		if err := b.flush(); err != nil {
			t.Fatal(err)
		}
		own := fmt.Sprintf("gateway sees %v", b.addr(atClient, family))
		wantReply(t, "UDP after flush", udp.ask(), own)
		wantReply(t, "TCP after flush", tcp.ask(), "reset")
	}
}

// A server that goes away ends its connections.
func TestFlowToClosedServer(t *testing.T) {
	b := setUp(t)
	if err := b.serve(t.Context(), atRemote, "brief", 9090); err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort("10.1.0.5:9090")
	tcp := openOne(t, b, probe{from: atClient, protocol: v1.ProtocolTCP, to: to})
	wantReply(t, "TCP at first", tcp.ask(), "brief sees 10.0.0.6")
	last := len(b.servers) - 1
	if err := b.servers[last].Close(); err != nil {
		t.Fatal(err)
	}
	b.servers = b.servers[:last]
	if r := tcp.ask(); r.outcome != failed && r.outcome != reset {
		t.Errorf("TCP to a closed server: %v, want a failure or a reset", r)
	}
	check(t, b, []expectation{
		{probe{from: atClient, protocol: v1.ProtocolTCP, to: to}, []string{"reset"}},
		{probe{from: atClient, protocol: v1.ProtocolUDP, to: to}, []string{"refused"}},
	})
}
