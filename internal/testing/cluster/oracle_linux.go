package cluster

import (
	"net/netip"
	"slices"
	"syscall"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/proxy"
)

// Oracle knows which replies a packet may get: what [proxy.Route] decides, and what the node and its
// dataplane do beside that. A function that is nil is one that always returns false, or nothing.
type Oracle struct {
	// IsNode reports whether an address is the node's. Towards returns the source address that the node
	// selects for packets to a destination, also for masqueraded ones.
	IsNode  func(netip.Addr) bool
	Towards func(netip.Addr) netip.Addr
	// Server returns the name of the server at an address.
	Server func(netip.AddrPort) string
	// Hides reports whether an endpoint sees the node's address instead of the client's, although
	// Route does not masquerade, and Loses whether packets to an endpoint are lost.
	Hides func(proxy.Packet, netip.Addr) bool
	Loses func(proxy.Packet, proxy.Destination) bool
	// Blocks reports whether firewalls of other programs drop a packet without translation. LosesRefusals
	// says that they may drop the refusal of a forwarded packet.
	Blocks        func(proxy.Packet) bool
	LosesRefusals bool
	// AnyRefusal says that the dataplane may refuse packets in any way, and OtherPorts that it may
	// refuse packets to other ports of Services.
	AnyRefusal, OtherPorts bool
}

// Packet returns the first packet of a connection as [proxy.Route] knows it. The link is the interface
// of the node that receives it; it is empty for packets of the node.
func (o *Oracle) Packet(protocol v1.Protocol, source, to netip.AddrPort, link string) proxy.Packet {
	return proxy.Packet{
		Protocol: protocol, Source: source, Destination: to,
		FromNode: link == "", Interface: link, ToNode: o.IsNode(to.Addr()),
	}
}

// Allows reports whether a verdict about a packet allows a reply. An answer is that of the expected endpoint, which
// sees the expected client, whatever the name of the server.
func (o *Oracle) Allows(p proxy.Packet, v proxy.Verdict, got lab.Reply) bool {
	return slices.ContainsFunc(o.Replies(p, v), func(want lab.Reply) bool {
		if got.Outcome != want.Outcome || got.Outcome != lab.Answered {
			return got.String() == want.String()
		}
		return got.Own == want.Own && got.Client.Addr() == want.Client.Addr()
	})
}

// Replies returns the replies that a verdict about a packet allows.
func (o *Oracle) Replies(p proxy.Packet, v proxy.Verdict) (all []lab.Reply) {
	switch v.Action {
	case proxy.Reject:
		all = o.refusals(p, lab.Refused)
		if o.LosesRefusals && !p.FromNode {
			all = append(all, lab.Reply{Outcome: lab.Silence})
		}
	case proxy.Drop:
		all = o.refusals(p, lab.Silence)
	case proxy.Pass:
		all = []lab.Reply{o.untouched(p)}
		isVirtual := func(r netip.Prefix) bool { return r.Contains(p.Destination.Addr()) }
		if o.OtherPorts && slices.ContainsFunc(VirtualRanges(), isVirtual) {
			all = append(all, o.refusals(p, lab.Refused)...)
		}
	case proxy.Forward:
		for _, e := range v.Endpoints {
			all = append(all, o.forwarded(p, e))
		}
	}
	return all
}

// forwarded returns the reply to a packet that is forwarded to an endpoint.
func (o *Oracle) forwarded(p proxy.Packet, e proxy.Destination) lab.Reply {
	if o.Loses != nil && o.Loses(p, e) {
		return lab.Reply{Outcome: lab.Silence}
	}
	client := p.Source.Addr()
	if e.Masquerade || o.Hides != nil && o.Hides(p, e.Addr.Addr()) {
		client = o.Towards(e.Addr.Addr())
	}
	return o.answer(e.Addr, client)
}

// untouched returns the reply to a packet without translation: the host with its destination answers, for
// virtual addresses the gateway.
func (o *Oracle) untouched(p proxy.Packet) lab.Reply {
	if o.Blocks != nil && o.Blocks(p) {
		return lab.Reply{Outcome: lab.Silence}
	}
	if p.Protocol == lab.ICMP {
		return lab.Reply{Outcome: lab.Answered}
	}
	return o.answer(p.Destination, p.Source.Addr())
}

func (o *Oracle) answer(own netip.AddrPort, client netip.Addr) lab.Reply {
	a := lab.Answer{Client: netip.AddrPortFrom(client, 0), Own: own}
	if o.Server != nil {
		a.Name = o.Server(own)
	}
	return lab.Reply{Outcome: lab.Answered, Answer: a}
}

// refusals returns the replies to a packet that must be refused; specified is that of a dataplane that does not
// refuse in any way.
func (o *Oracle) refusals(p proxy.Packet, specified lab.Outcome) []lab.Reply {
	if !o.AnyRefusal && !p.Destination.Addr().IsLoopback() {
		if (p.Protocol == v1.ProtocolTCP || p.Protocol == v1.ProtocolSCTP) && specified == lab.Refused {
			specified = lab.Reset // An SCTP socket does not tell ICMP errors from other refusals.
		}
		return []lab.Reply{{Outcome: specified}}
	}
	all := []lab.Reply{
		{Outcome: lab.Refused}, {Outcome: lab.Reset}, {Outcome: lab.Silence},
		{Outcome: lab.Failed, Err: syscall.EINVAL}, // the error of the node for an unreachable route
	}
	if p.Protocol == lab.ICMP {
		all = append(all, lab.Reply{Outcome: lab.Answered}) // no server has seen it
	}
	return all
}
