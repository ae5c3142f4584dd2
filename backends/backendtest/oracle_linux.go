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
	"github.com/vipkit/vipkit/proxy"
)

// flight is a packet to send in the testbed.
type flight struct {
	from     place
	to       netip.AddrPort
	protocol v1.Protocol
}

func (f flight) String() string {
	if f.protocol == icmp {
		return fmt.Sprintf("%s to %s/ICMP", f.from, f.to.Addr())
	}
	return fmt.Sprintf("%s to %s/%s", f.from, f.to, f.protocol)
}

func (f flight) family() v1.IPFamily { return ipaddr.FamilyOf(f.to.Addr()) }

// flying gives the flights of families that there are.
func (b *testbed) flying(flights []flight) []flight {
	return slices.DeleteFunc(slices.Clone(flights), func(f flight) bool { return !b.world.has(f.to.Addr()) })
}

// packet gives the first packet of a flight as [proxy.Route] knows it.
func (b *testbed) packet(f flight) proxy.Packet {
	source := b.addr(f.from, f.family())
	if f.from == atNode {
		source = b.nodeTowards(f.to.Addr())
	}
	return proxy.Packet{
		Protocol:    f.protocol,
		Source:      netip.AddrPortFrom(source, 0),
		Destination: f.to,
		FromNode:    f.from == atNode,
		Interface:   b.entry(f.from),
		ToNode:      b.isNode(f.to.Addr()),
	}
}

func (b *testbed) isNode(a netip.Addr) bool {
	isStand := slices.ContainsFunc(b.world.stands(), func(s stand) bool { return s.addr == a })
	return a.IsLoopback() || isStand || slices.Contains(b.host(atNode).addrs, a) || slices.Contains(secondaryAddrs(), a)
}

// allowed gives the fates that a verdict allows a flight, as replies write
// themselves.
func (b *testbed) allowed(f flight, v proxy.Verdict) []string {
	p := b.packet(f)
	switch v.Action {
	case proxy.Reject:
		fates := b.refusals(f, refused)
		if b.world.forwards != "" && !p.FromNode && b.isLacking(FirewalledRefusals) {
			fates = append(fates, reply{outcome: silence}.String())
		}
		return fates
	case proxy.Drop:
		return b.refusals(f, silence)
	case proxy.Pass:
		return b.passages(f, p)
	case proxy.Forward:
	}
	var out []string
	for _, e := range v.Endpoints {
		out = append(out, b.forwarded(f, p, e).String())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// forwarded is the fate of a flight that goes to an endpoint.
func (b *testbed) forwarded(f flight, p proxy.Packet, e proxy.Destination) reply {
	to := b.placeOf(e.Addr.Addr())
	if b.isLacking(b.world.needs(f.from, to, e.Masquerade)) {
		return reply{outcome: silence}
	}
	client := p.Source.Addr()
	sameBridge := b.world.bridge != nil && isPod(f.from) && isPod(to)
	if e.Masquerade || b.isLacking(ClientAddresses) || sameBridge && b.isLacking(BridgedAddresses) {
		client = b.nodeTowards(e.Addr.Addr())
	}
	by := string(to)
	if to == atNode {
		by = byHostNetwork
	}
	return reply{outcome: answered, by: by, client: netip.AddrPortFrom(client, 0)}
}

// untouched is the fate of a flight that nobody translates: who has its
// destination answers, the gateway for virtual addresses.
func (b *testbed) untouched(f flight, p proxy.Packet) string {
	r := reply{outcome: answered, by: byGateway, client: p.Source}
	for _, s := range services() {
		if b.has(s.at, f.to.Addr()) && slices.Contains(s.ports, f.to.Port()) {
			r.by = s.name
		}
	}
	if f.protocol == icmp {
		r.by = ""
	}
	if !p.FromNode && !p.ToNode && !b.world.lets(p.Source.Addr(), p.Destination.Addr()) {
		return reply{outcome: silence}.String()
	}
	return r.String()
}

// has reports whether an address is one of a place's own.
func (b *testbed) has(at place, a netip.Addr) bool {
	return at == atNode && b.isNode(a) || slices.Contains(b.host(at).addrs, a)
}

// placeOf gives the place that has an address.
func (b *testbed) placeOf(a netip.Addr) place {
	for _, h := range b.hosts {
		if slices.Contains(h.addrs, a) {
			return h.name
		}
	}
	return place("nobody at " + a.String())
}

// Numbers of tries: two endpoints both show in 8 tries with a probability of
// 99 percent. Where one does not, many more tries decide.
const (
	firstTries = 8
	manyTries  = 64
)

// wrongFlight is a flight that went otherwise than it should, with what became of
// its packets, and a message that says it all.
type wrongFlight struct {
	flight
	got     []string
	message string
}

// checkOracle sends flights and holds what becomes of them to what
// [proxy.Route] says of the snapshot. It gives those that went wrong. All fly at
// once: as their sources differ, no flow of one place has a part in what becomes of
// another's, and silence is waited for once.
func (b *testbed) checkOracle(ctx context.Context, s proxy.Snapshot, flights []flight) ([]wrongFlight, error) {
	if err := b.flush(); err != nil {
		return nil, err
	}
	flights = b.flying(flights)
	wrong, err := b.introduce(ctx, s, flights)
	if err != nil {
		return nil, err
	}
	missed, messages, err := b.tryFlights(ctx, s, flights, firstTries)
	wrong = append(wrong, messages...)
	if err == nil && len(missed) > 0 {
		_, messages, err = b.tryFlights(ctx, s, missed, manyTries)
		wrong = append(wrong, messages...)
	}
	return wrong, err
}

// introduce makes clients known where there is session affinity, one connection
// after the other: two first ones at once may well get different endpoints.
func (b *testbed) introduce(ctx context.Context, s proxy.Snapshot, flights []flight) (wrong []wrongFlight, err error) {
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
	}
	return wrong, nil
}

// withoutLoss leaves the silence of endpoints out that cannot be reached: nobody needs
// to remember that a client was led to one.
func withoutLoss(got []string, v proxy.Verdict) []string {
	lost := reply{outcome: silence}.String()
	return slices.DeleteFunc(slices.Clone(got), func(g string) bool { return v.Action == proxy.Forward && g == lost })
}

// patience is how long to wait for answers to a flight.
func (b *testbed) patience(f flight, v proxy.Verdict) time.Duration {
	if slices.Contains(b.allowed(f, v), reply{outcome: silence}.String()) {
		return impatience
	}
	return patience
}

// tryFlights sends flights. Those of which an allowed fate was not seen come
// back to be tried again, unless this was many tries already.
func (b *testbed) tryFlights(ctx context.Context, s proxy.Snapshot, flights []flight, tries int) (missed []flight, wrong []wrongFlight, err error) {
	probes := make([]probe, len(flights))
	verdicts := make([]proxy.Verdict, len(flights))
	for i, f := range flights {
		verdicts[i] = proxy.Route(s, b.packet(f))
		probes[i] = probe{from: f.from, protocol: f.protocol, to: f.to, tries: 1, patience: b.patience(f, verdicts[i])}
		if len(verdicts[i].Endpoints) > 1 {
			probes[i].tries = tries
		}
	}
	replies, err := b.probeAll(ctx, probes)
	if err != nil {
		return nil, nil, err
	}
	for i, f := range flights {
		want, got := b.allowed(f, verdicts[i]), summary(replies[i])
		alien := slices.ContainsFunc(got, func(g string) bool { return !slices.Contains(want, g) })
		// Where nothing is forwarded, any fate of those allowed will do.
		sticky := verdicts[i].Affinity.Enabled() || verdicts[i].Action != proxy.Forward
		switch {
		case alien, sticky && len(withoutLoss(got, verdicts[i])) > 1, !sticky && len(got) < len(want) && tries == manyTries:
			wrong = append(wrong, wrongFlight{f, got, mismatch(f, verdicts[i], want, got)})
		case !sticky && len(got) < len(want):
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
	return fmt.Sprintf("%s:\n  got  %s\n  want %s %s\n  since %s", f,
		strings.Join(got, ", "), all, strings.Join(want, ", "), strings.Join(v.Reasons, "; "))
}
