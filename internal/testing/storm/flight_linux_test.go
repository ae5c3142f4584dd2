package storm

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/proxy"
)

// allClients returns the hosts that connections come from. A stranger is outside of most of the source
// ranges of Services. A client at cluster.Local is an endpoint of the Service that it connects to.
func allClients() []cluster.Name {
	return []cluster.Name{cluster.Client, cluster.Outside, cluster.Stranger, cluster.Node, cluster.Local}
}

// flight is a connection to make.
type flight struct {
	from     cluster.Name
	to       netip.AddrPort
	protocol v1.Protocol
	// source is the address of the client if it is an endpoint; other clients have many
	// addresses.
	source netip.Addr
}

func (f flight) String() string { return fmt.Sprintf("%s to %v/%s", f.from, f.to, f.protocol) }

// packet returns the first packet of a flight from a source, for [proxy.Route].
func (f flight) packet(o *cluster.Oracle, source netip.AddrPort) proxy.Packet {
	return o.Packet(f.protocol, source, f.to, cluster.Entry(f.from))
}

// crowd returns the range of the client's addresses. The node has none.
func (f flight) crowd() netip.Prefix {
	return crowdOf(f.from, ipaddr.FamilyOf(f.to.Addr()))
}

// crowdOf returns the range of the crowd of a host in a family.
func crowdOf(at cluster.Name, family v1.IPFamily) netip.Prefix {
	h := cluster.Find(at)
	i := slices.IndexFunc(h.Crowd, func(p netip.Prefix) bool { return ipaddr.FamilyOf(p.Addr()) == family })
	return h.Crowd[i]
}

// flights returns the flights of all clients to all frontends of a snapshot.
func flights(s proxy.Snapshot) (all []flight) {
	if s.IsZero() {
		return nil
	}
	for p := range s.All() {
		for i := range p.Frontends {
			all = append(all, flightsTo(p, p.Frontends[i].Addr)...)
		}
	}
	return all
}

// absentFlights returns the flights to all addresses that may be frontends of Services but
// are not in a snapshot.
func absentFlights(s proxy.Snapshot) (all []flight) {
	isThere := map[flight]bool{}
	for _, f := range flights(s) {
		isThere[f] = true
	}
	for n := range randomServices + 1 {
		for _, to := range frontendsOf(n) {
			for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
				for _, c := range allClients() {
					if f := (flight{from: c, to: to, protocol: protocol}); c != cluster.Local && !isThere[f] {
						all = append(all, f)
					}
				}
			}
		}
	}
	return all
}

// flightsTo returns the flights of all clients to a frontend of a service port.
func flightsTo(p *proxy.ServicePort, frontend netip.AddrPort) (all []flight) {
	to := []netip.AddrPort{frontend}
	if frontend.Addr().IsUnspecified() {
		to = nodePortAddrs(p.Name.Family, frontend.Port())
	}
	for _, a := range to {
		for _, c := range allClients() {
			f := flight{from: c, to: a, protocol: p.Name.Protocol}
			if c != cluster.Local {
				all = append(all, f)
			} else if f.source = soleEndpoint(p); f.source.IsValid() {
				all = append(all, f)
			}
		}
	}
	return all
}

func nodePortAddrs(family v1.IPFamily, port uint16) (all []netip.AddrPort) {
	for _, a := range nodeAddrs() {
		if ipaddr.FamilyOf(a) == family {
			all = append(all, netip.AddrPortFrom(a, port))
		}
	}
	return all
}

// soleEndpoint returns the only endpoint of a Service, if it is on this node. With more
// endpoints, one could answer another directly, and the answer would not pass the node.
func soleEndpoint(p *proxy.ServicePort) netip.Addr {
	if len(p.Cluster) != 1 || len(p.Local) > 1 {
		return netip.Addr{}
	}
	a := p.Cluster[0].Addr.Addr()
	if !crowdOf(cluster.Local, p.Name.Family).Contains(a) || len(p.Local) == 1 && p.Local[0].Addr.Addr() != a {
		return netip.Addr{}
	}
	return a
}

// outcome is the result of a flight.
type outcome struct {
	lab.Reply

	source netip.AddrPort // where it came from
	// notTried says why the connection was not tried, for a reason that is not the dataplane's.
	notTried error
	// refuser says who refused the connection, for a violation; nil if that is not known.
	refuser func(*outcome) string
}

// whoRefused says who refused the connection, if that is known.
func (f *outcome) whoRefused() string {
	if f.refuser == nil {
		return ""
	}
	return f.refuser(f)
}

func (f *outcome) String() string {
	if !f.answered() {
		return f.Reply.String()
	}
	return fmt.Sprintf("answer from %v, which sees client %v", f.Own, f.Client.Addr())
}

// reply returns the reply for the oracle, for which a connection that failed is one without an answer.
func (f *outcome) reply() lab.Reply {
	if f.Outcome == lab.Failed {
		return lab.Reply{Outcome: lab.Silence}
	}
	return f.Reply
}

func (f *outcome) answered() bool { return f.Outcome == lab.Answered }

// choseElsewhere reports whether a client may have affinity to the endpoint that answered because it
// chose that at another address of the Service, while a traffic policy kept it from that endpoint at
// this one. The backend nftables removes such clients after the change of the rules, so the endpoint is
// one of an earlier state.
func choseElsewhere(f flight, got *outcome, states []proxy.Snapshot) bool {
	answered := func(e *endpoints.Endpoint) bool { return e.Addr == got.Own }
	for _, s := range states[:max(0, len(states)-1)] {
		for p := range s.All() {
			serves := slices.ContainsFunc(p.Frontends, func(x proxy.Frontend) bool {
				return x.Addr == f.to || x.Addr.Addr().IsUnspecified() && x.Addr.Port() == f.to.Port() && slices.Contains(nodeAddrs(), f.to.Addr())
			})
			if serves && p.Name.Protocol == f.protocol && p.Affinity.Enabled() && (slices.ContainsFunc(p.Cluster, answered) || slices.ContainsFunc(p.Local, answered)) {
				return true
			}
		}
	}
	return false
}

// served reports whether an endpoint answered, rather than the server at the untranslated
// address.
func (f *outcome) served(to flight) bool { return f.answered() && f.Own != to.to }
