package backendtest

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// The virtual addresses of testdata/verdicts.nft, by their last number.
const (
	toLocal = iota + 1
	toLocalMasked
	toRemote
	toRemoteMasked
	toEither
	toHost
	toRefused
	toDropped
	toReset
	toProhibited
)

// The node ports of testdata/verdicts.nft.
const (
	nodePortLocal   = 30001
	nodePortRefused = 30002
	nodePortDropped = 30003
)

// vip returns the virtual address with a number, of the range of ClusterIPs.
func vip(family v1.IPFamily, n byte) netip.Addr {
	if family == v1.IPv4Protocol {
		return netip.AddrFrom4([4]byte{10, 96, 0, n})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x96, 15: n})
}

// setUpVerdicts returns a testbed whose node has the rules of testdata/verdicts.nft.
func setUpVerdicts(t *testing.T) *testbed {
	t.Helper()
	b := setUp(t)
	rules, err := os.ReadFile("testdata/verdicts.nft")
	testenv.NoError(t, err)
	testenv.NoError(t, findNFT(t, b.node()).load(string(rules)))
	return b
}

// Each verdict has an outcome of its own, whatever host sends the packet.
func TestVerdicts(t *testing.T) {
	b := setUpVerdicts(t)
	var all []expectation
	for _, from := range []cluster.Name{cluster.Node, cluster.Client, cluster.Local, cluster.Local2, cluster.RemoteNode, cluster.Remote, cluster.Outside, cluster.Stranger} {
		for _, family := range ipaddr.Families() {
			for _, protocol := range transports() {
				all = append(all, wantedVerdicts(b, from, family, protocol)...)
			}
			all = append(all,
				expectation{probe{from: from, protocol: lab.ICMP, to: netip.AddrPortFrom(vip(family, toRefused), 0)}, []string{"refused"}},
				expectation{probe{from: from, protocol: lab.ICMP, to: netip.AddrPortFrom(vip(family, toDropped), 0)}, []string{"silence"}},
				expectation{probe{from: from, protocol: lab.ICMP, to: netip.AddrPortFrom(vip(family, toReset), 0)}, []string{"answered"}})
		}
	}
	check(t, b, all)
}

func wantedVerdicts(b *testbed, from cluster.Name, family v1.IPFamily, protocol v1.Protocol) []expectation {
	own, node := b.host(from).Addr(family), b.host(cluster.Node).Addr(family)
	at := func(n byte, want ...string) expectation {
		return expectation{
			probe{from: from, protocol: protocol, to: netip.AddrPortFrom(vip(family, n), 80), tries: 4}, want,
		}
	}
	port := func(n uint16, want ...string) expectation {
		return expectation{probe{from: from, protocol: protocol, to: netip.AddrPortFrom(node, n), tries: 2}, want}
	}
	all := []expectation{
		at(toLocalMasked, sees("local", node)...),
		at(toRemoteMasked, sees("remote", node)...),
		at(toHost, sees(cluster.ByHostNetwork, own)...),
		at(toRefused, "refused"),
		at(toDropped, "silence"),
		port(cluster.FirstNodePort, sees(cluster.ByHost, own)...),
		port(nodePortLocal, sees("local", node)...),
		port(nodePortRefused, "refused"),
		port(nodePortDropped, "silence"),
	}
	if protocol == v1.ProtocolTCP {
		all = append(all, at(toReset, "reset"))
	} else {
		all = append(all, at(toReset, sees(cluster.ByGateway, own)...))
	}
	if from != cluster.Local { // A hairpin needs masquerade.
		all = append(all, at(toLocal, sees("local", own)...))
	}
	// Replies must return by the same route.
	if from != cluster.Remote && from != cluster.RemoteNode {
		all = append(all, at(toRemote, sees("remote", own)...))
	}
	return all
}

// An ICMP error other than that of Services without endpoints is a failure with a
// reason.
func TestOtherRefusalsFail(t *testing.T) {
	b := setUpVerdicts(t)
	for _, from := range []cluster.Name{cluster.Node, cluster.Client} {
		for _, family := range ipaddr.Families() {
			for _, protocol := range transports() {
				p := probe{from: from, protocol: protocol, to: netip.AddrPortFrom(vip(family, toProhibited), 80)}
				replies, err := b.probe(t.Context(), p)
				testenv.NoError(t, err)
				if r := replies[0]; r.Outcome != lab.Failed || r.Err == nil {
					t.Errorf("%s to %v/%s: got %v, want a failure", from, p.to, protocol, r)
				}
			}
		}
	}
}

func TestProbeErrors(t *testing.T) {
	b := setUp(t)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	to := netip.MustParseAddrPort("10.0.0.5:8080")
	for _, c := range []struct {
		name string
		ctx  context.Context
		probe
	}{
		{"unknown host", t.Context(), probe{from: "nowhere", protocol: v1.ProtocolTCP, to: to}},
		{"unknown protocol", t.Context(), probe{from: cluster.Client, protocol: v1.ProtocolSCTP, to: to}},
		{"foreign source address", t.Context(), probe{
			from: cluster.Client, protocol: v1.ProtocolUDP, to: to, source: netip.MustParseAddrPort("10.0.0.5:0"),
		}},
		{"cancelled", cancelled, probe{from: cluster.Client, protocol: v1.ProtocolTCP, to: to}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if replies, err := b.probe(c.ctx, c.probe); err == nil {
				t.Errorf("probe: got %v and no error, want an error", replies)
			}
			if replies, err := b.probeAll(c.ctx, []probe{c.probe}); err == nil {
				t.Errorf("probeAll: got %v and no error, want an error", replies)
			}
		})
	}
}

func TestSummary(t *testing.T) {
	client := netip.MustParseAddrPort("10.0.0.6:1024")
	got := summary([]lab.Reply{
		{Outcome: lab.Silence}, {Outcome: lab.Refused}, {Outcome: lab.Reset}, {Outcome: lab.Answered},
		{Outcome: lab.Failed, Err: errors.New("why")},
		{Outcome: lab.Answered, Answer: lab.Answer{Name: "local", Client: client}},
		{Outcome: lab.Answered, Answer: lab.Answer{Name: "local", Client: netip.AddrPortFrom(client.Addr(), 2048)}},
	})
	want := []string{"answered", "failed: why", "local sees 10.0.0.6", "refused", "reset", "silence"}
	testenv.Same(t, want, got, "summary")
}
