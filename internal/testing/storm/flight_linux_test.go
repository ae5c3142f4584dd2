package storm

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/proxy"
)

// client is where connections come from.
type client string

// The clients. A stranger is outside of most of the source ranges of Services.
const (
	clientPod      client = "pod"
	clientOutside  client = "outside"
	clientStranger client = "stranger"
	clientNode     client = "node"
	// clientEndpoint is an endpoint of the Service that it connects to.
	clientEndpoint client = "endpoint"
)

func allClients() []client {
	return []client{clientPod, clientOutside, clientStranger, clientNode, clientEndpoint}
}

// leaf returns the leaf of a client, and the number of the prefix of a family that its
// addresses are in. For the node it returns "".
func (c client) leaf() (leaf string, prefix int) {
	switch c {
	case clientPod:
		return atClients, 0
	case clientOutside:
		return atOutside, 0
	case clientStranger:
		return atOutside, 1
	case clientEndpoint:
		return atPods, 0
	case clientNode:
	}
	return "", 0
}

// flight is a connection to make.
type flight struct {
	from     client
	to       netip.AddrPort
	protocol v1.Protocol
	// source is the address of the client if it is an endpoint; other clients have many
	// addresses.
	source netip.Addr
}

func (f flight) String() string { return fmt.Sprintf("%s to %v/%s", f.from, f.to, f.protocol) }

func (f flight) family() v1.IPFamily { return ipaddr.FamilyOf(f.to.Addr()) }

// packet returns the first packet of a flight from a source, for [proxy.Route].
func (f flight) packet(source netip.AddrPort) proxy.Packet {
	leaf, _ := f.from.leaf()
	return proxy.Packet{
		Protocol: f.protocol, Source: source, Destination: f.to,
		FromNode: f.from == clientNode, Interface: leaf, ToNode: slices.Contains(nodeAddrs(), f.to.Addr()),
	}
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
	full := spec{Type: v1.ServiceTypeLoadBalancer, ExternalIP: true}
	inv := newInventory(trackerOptions())
	services := map[int]*spec{}
	for n := range randomServices + 1 {
		services[n] = &full
	}
	inv.apply(&change{Services: services, Node: new(0)})
	inv.tracker.Synced()
	other, err := inv.Next(context.Background(), proxy.Snapshot{})
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(flights(other), func(f flight) bool { return isThere[f] })
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
			if c != clientEndpoint {
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
	if !ofFamily(atPods, p.Name.Family, 0).Contains(a) || len(p.Local) == 1 && p.Local[0].Addr.Addr() != a {
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

// isAllowed reports whether a verdict allows an outcome.
func isAllowed(f flight, v *proxy.Verdict, got *outcome) bool {
	switch v.Action {
	case proxy.Reject, proxy.Drop:
		return !got.answered()
	case proxy.Pass:
		return !got.served(f)
	case proxy.Forward:
	}
	return got.answered() && slices.ContainsFunc(v.Endpoints, func(d proxy.Destination) bool {
		if d.Addr != got.Own {
			return false
		}
		// A process of the node that connects to an address of the device of the backend ipvs has
		// this address, which must not leave the node.
		if d.Masquerade || f.from == clientNode && !slices.Contains(nodeAddrs(), got.source.Addr()) {
			return slices.Contains(nodeAddrs(), got.Client.Addr())
		}
		return got.Client.Addr() == got.source.Addr()
	})
}

// served reports whether an endpoint answered, rather than the server at the untranslated
// address.
func (f *outcome) served(to flight) bool { return f.answered() && f.Own != to.to }
