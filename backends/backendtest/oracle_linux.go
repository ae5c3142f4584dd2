package backendtest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/proxy"
)

// flight is a packet to send in the testbed.
type flight struct {
	from     cluster.Name
	to       netip.AddrPort
	protocol v1.Protocol
}

func (f flight) String() string {
	if f.protocol == lab.ICMP {
		return fmt.Sprintf("%s to %s/ICMP", f.from, f.to.Addr())
	}
	return fmt.Sprintf("%s to %s/%s", f.from, f.to, f.protocol)
}

func (f flight) family() v1.IPFamily { return ipaddr.FamilyOf(f.to.Addr()) }

// inWorld returns the flights whose family exists in the world.
func (b *testbed) inWorld(flights []flight) []flight {
	return slices.DeleteFunc(slices.Clone(flights), func(f flight) bool { return !b.world.has(f.to.Addr()) })
}

// packet returns the first packet of a flight as [proxy.Route] knows it.
func (b *testbed) packet(f flight) proxy.Packet {
	source := b.host(f.from).Addr(f.family())
	if f.from == cluster.Node {
		source = b.nodeTowards(f.to.Addr())
	}
	return b.oracle().Packet(f.protocol, netip.AddrPortFrom(source, 0), f.to, b.entry(f.from))
}

// oracle returns the oracle of the world, for a dataplane that lacks some capabilities.
func (b *testbed) oracle() *cluster.Oracle {
	return &cluster.Oracle{
		IsNode: b.isNode, Towards: b.nodeTowards, Server: b.server,
		Hides: func(p proxy.Packet, to netip.Addr) bool {
			sameBridge := b.world.bridge != nil && cluster.IsPod(b.hostWith(p.Source.Addr())) && cluster.IsPod(b.hostWith(to))
			return b.isLacking(ClientAddresses) || sameBridge && b.isLacking(BridgedAddresses) ||
				p.FromNode && !p.ToNode && b.isLacking(NodeAddresses)
		},
		Loses: func(p proxy.Packet, e proxy.Destination) bool {
			return b.isLacking(b.world.needs(b.hostWith(p.Source.Addr()), b.hostWith(e.Addr.Addr()), e.Masquerade))
		},
		Blocks: func(p proxy.Packet) bool {
			return !p.FromNode && !p.ToNode && !b.world.allows(p.Source.Addr(), p.Destination.Addr())
		},
		LosesRefusals: b.world.forwards != "" && b.isLacking(FirewalledRefusals),
		AnyRefusal:    b.isLacking(Refusals), OtherPorts: b.isLacking(OtherPorts),
	}
}

func (b *testbed) isLacking(what Capability) bool { return b.lacks != nil && b.lacks(what) }

func (b *testbed) isNode(a netip.Addr) bool {
	isSourceAddr := slices.ContainsFunc(b.world.sourceAddrs(), func(s sourceAddr) bool { return s.addr == a })
	return a.IsLoopback() || isSourceAddr || slices.Contains(b.host(cluster.Node).Addrs, a) || slices.Contains(cluster.SecondaryAddrs(), a)
}

// allowed returns the outcomes that a verdict allows for a flight, in the form of
// reply.String.
func (b *testbed) allowed(f flight, v proxy.Verdict) []string {
	return summary(b.oracle().Replies(b.packet(f), v))
}

// server returns the name of the server at an address: for virtual ones the gateway.
func (b *testbed) server(at netip.AddrPort) string {
	for _, s := range cluster.Servers() {
		isHere := s.At == cluster.Node && b.isNode(at.Addr()) || slices.Contains(b.host(s.At).Addrs, at.Addr())
		if isHere && slices.Contains(s.Ports, at.Port()) {
			return s.Name
		}
	}
	return cluster.ByGateway
}

// hostWith returns the host that has an address; empty if there is none.
func (b *testbed) hostWith(a netip.Addr) cluster.Name {
	for _, h := range b.hosts {
		if slices.Contains(h.Addrs, a) {
			return h.Name
		}
	}
	return ""
}

// Numbers of tries: with a probability of 99 percent both of two endpoints answer in the 8
// tries of a round. If one does not, more rounds decide. More tries at once would be answered late on a
// busy machine, and count as lost where packets may be.
const (
	roundTries = 8
	maxRounds  = 9
)

// wrongFlight is a flight with a wrong outcome, with the outcomes of its packets, and a
// message that describes them.
type wrongFlight struct {
	flight
	got     []string
	message string
}

// checkOracle sends flights, compares their outcomes with [proxy.Route] for the snapshot,
// and returns the wrong ones. It sends all at once, so that it waits for silence once; as
// their sources differ, the flows of one host do not affect those of another.
func (b *testbed) checkOracle(ctx context.Context, s proxy.Snapshot, flights []flight) ([]wrongFlight, error) {
	if err := b.flush(); err != nil {
		return nil, err
	}
	flights = b.inWorld(flights)
	wrong, err := b.connectFirst(ctx, s, flights)
	if err != nil || len(wrong) > 0 {
		return wrong, err
	}
	seen := map[flight][]string{}
	for round := range maxRounds {
		var messages []wrongFlight
		if flights, messages, err = b.tryFlights(ctx, s, flights, round, seen); err != nil {
			return nil, err
		}
		if wrong = append(wrong, messages...); len(flights) == 0 {
			return wrong, nil
		}
	}
	for _, f := range flights {
		v := proxy.Route(s, b.packet(f))
		wrong = append(wrong, wrongFlight{f, seen[f], mismatch(f, v, b.allowed(f, v), seen[f])})
	}
	return wrong, nil
}

// connectFirst makes the first connection of each client with session affinity, one after
// the other: two first connections at once may get different endpoints.
func (b *testbed) connectFirst(ctx context.Context, s proxy.Snapshot, flights []flight) (wrong []wrongFlight, err error) {
	for _, f := range flights {
		v := proxy.Route(s, b.packet(f))
		if v.Action != proxy.Forward || !v.Affinity.Enabled() {
			continue
		}
		replies, err := b.probe(ctx, probe{from: f.from, protocol: f.protocol, to: f.to, patience: b.patience(f, v)})
		if err != nil {
			return nil, err
		}
		if got := summary(replies); !slices.Contains(b.allowed(f, v), got[0]) {
			wrong = append(wrong, wrongFlight{f, got, mismatch(f, v, b.allowed(f, v), got)})
		}
		if len(wrong) == mostReported {
			break
		}
	}
	return wrong, nil
}

// withoutLoss removes the silence of unreachable endpoints: affinity need not keep a client
// at one of them.
func withoutLoss(got []string, v proxy.Verdict) []string {
	lost := lab.Reply{Outcome: lab.Silence}.String()
	return slices.DeleteFunc(slices.Clone(got), func(g string) bool { return v.Action == proxy.Forward && g == lost })
}

// patience returns how long to wait for answers to a flight.
func (b *testbed) patience(f flight, v proxy.Verdict) time.Duration {
	if slices.Contains(b.allowed(f, v), lab.Reply{Outcome: lab.Silence}.String()) {
		return shortPatience
	}
	return patience
}

// tryFlights sends flights in a round, and adds their outcomes to those seen in earlier ones. It returns as
// missed those of which an expected outcome was never seen.
func (b *testbed) tryFlights(ctx context.Context, s proxy.Snapshot, flights []flight, round int, seen map[flight][]string) (missed []flight, wrong []wrongFlight, err error) {
	probes := make([]probe, len(flights))
	verdicts := make([]proxy.Verdict, len(flights))
	for i, f := range flights {
		verdicts[i] = proxy.Route(s, b.packet(f))
		probes[i] = probe{from: f.from, protocol: f.protocol, to: f.to, tries: 1, patience: b.patience(f, verdicts[i])}
		if round > 0 { // answers of a busy machine were late
			probes[i].patience = max(longPatience, probes[i].patience)
		}
		if len(verdicts[i].Endpoints) > 1 {
			probes[i].tries = roundTries
		}
	}
	replies, err := b.probeAll(ctx, probes)
	if err != nil {
		return nil, nil, err
	}
	for i, f := range flights {
		want, got := b.allowed(f, verdicts[i]), summary(replies[i])
		alien := slices.ContainsFunc(got, func(g string) bool { return !slices.Contains(want, g) })
		// If nothing is forwarded, one of the allowed outcomes is enough.
		sticky := verdicts[i].Affinity.Enabled() || verdicts[i].Action != proxy.Forward
		seen[f] = slices.Compact(slices.Sorted(slices.Values(slices.Concat(seen[f], got))))
		switch {
		case alien, sticky && len(withoutLoss(got, verdicts[i])) > 1:
			wrong = append(wrong, wrongFlight{f, got, mismatch(f, verdicts[i], want, got)})
		case !sticky && len(seen[f]) < len(want):
			missed = append(missed, f)
		}
	}
	return missed, wrong, nil
}

func mismatch(f flight, v proxy.Verdict, want, got []string) string {
	all := "all of"
	if v.Affinity.Enabled() || v.Action != proxy.Forward {
		all = "one of"
	}
	return fmt.Sprintf("%s:\n  got  %s\n  want %s %s\n  because %s", f,
		strings.Join(got, ", "), all, strings.Join(want, ", "), strings.Join(v.Reasons, "; "))
}
