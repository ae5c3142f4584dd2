package differential

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	kube "k8s.io/kubernetes/pkg/proxy"
	netutils "k8s.io/utils/net"

	"github.com/vipkit/vipkit/proxy"
)

// record is an endpoint of kube-proxy.
type record struct {
	ip                                 string
	port                               int
	local, ready, serving, terminating bool
	zones, nodes                       sets.Set[string]
}

func readRecord(e kube.Endpoint) *record {
	return &record{
		ip: e.IP(), port: e.Port(), local: e.IsLocal(), ready: e.IsReady(), serving: e.IsServing(),
		terminating: e.IsTerminating(), zones: e.ZoneHints(), nodes: e.NodeHints(),
	}
}

func (r *record) String() string              { return net.JoinHostPort(r.ip, strconv.Itoa(r.port)) }
func (r *record) IP() string                  { return r.ip }
func (r *record) Port() int                   { return r.port }
func (r *record) IsLocal() bool               { return r.local }
func (r *record) IsReady() bool               { return r.ready }
func (r *record) IsServing() bool             { return r.serving }
func (r *record) IsTerminating() bool         { return r.terminating }
func (r *record) ZoneHints() sets.Set[string] { return r.zones }
func (r *record) NodeHints() sets.Set[string] { return r.nodes }

// line returns all compared fields of an endpoint.
func (r *record) line(zone string) string {
	return endpointLine(r.String(), []bool{r.local, r.ready, r.serving, r.terminating}, hint(r.zones, zone), hint(r.nodes, nodeName))
}

func endpointLine(addr string, flags []bool, zone, node string) string {
	text := addr
	for i, word := range []string{"local", "ready", "serving", "terminating"} {
		if flags[i] {
			text += " " + word
		}
	}
	return fmt.Sprintf("%s, zone hint %s, node hint %s", text, zone, node)
}

func hint(names sets.Set[string], here string) string {
	switch {
	case len(names) == 0:
		return "none"
	case names.Has(here):
		return "here"
	}
	return "elsewhere"
}

func recordLines(list []*record, zone string) []string {
	var out []string
	for _, r := range list {
		out = append(out, r.line(zone))
	}
	slices.Sort(out)
	return out
}

// records returns the records of all slices for one address of a port.
func (e *expectation) records(name proxy.ServicePortName, like *record) []*record {
	var all []*record
	for _, s := range e.cluster.slices {
		if s.Namespace != name.Namespace || s.Labels[discoveryv1.LabelServiceName] != name.Name || string(s.AddressType) != string(name.Family) {
			continue
		}
		for _, p := range defaultedPorts(s) {
			if *p.Name == name.Port && *p.Protocol == name.Protocol && p.Port != nil && int(*p.Port) == like.port {
				all = append(all, recordsOf(s, like)...)
			}
		}
	}
	return all
}

func recordsOf(s *discoveryv1.EndpointSlice, like *record) []*record {
	var all []*record
	for i := range s.Endpoints {
		x := &s.Endpoints[i]
		if len(x.Addresses) == 0 || canonical(x.Addresses[0]) != like.ip {
			continue
		}
		is := func(b *bool, unless bool) bool { return b != nil && *b || b == nil && unless }
		r := &record{
			ip: like.ip, port: like.port, local: x.NodeName != nil && *x.NodeName == nodeName,
			ready: is(x.Conditions.Ready, true), serving: is(x.Conditions.Serving, true), terminating: is(x.Conditions.Terminating, false),
		}
		if x.Hints != nil {
			r.zones, r.nodes = sets.New[string](), sets.New[string]()
			for _, z := range x.Hints.ForZones {
				r.zones.Insert(cmp.Or(z.Name, nowhere))
			}
			for _, n := range x.Hints.ForNodes {
				r.nodes.Insert(n.Name)
			}
		}
		all = append(all, r)
	}
	return all
}

// canonical returns an address as kube-proxy writes it.
func canonical(text string) string { return netutils.ParseIPSloppy(text).String() }

// preference orders the records of one address; the first one is used.
func preference(a, b *record) int {
	first := func(x, y bool) int { return cmp.Compare(strconv.FormatBool(y), strconv.FormatBool(x)) }
	return cmp.Or(first(!a.terminating, !b.terminating), first(a.ready, b.ready), first(a.serving, b.serving))
}

// usable reports whether an address can be the address of an endpoint or a frontend.
func usable(a netip.Addr, family v1.IPFamily) bool {
	return a.IsValid() && a.Is4() == (family == v1.IPv4Protocol) &&
		!a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

// serveable reports whether an address can be the address of a frontend.
func serveable(f frontend, family v1.IPFamily) bool {
	if !usable(f.addr, family) || !f.addr.Is4() {
		return usable(f.addr, family)
	}
	first := f.addr.As4()[0]
	return first != 0 && (first < 240 || f.kind != proxy.ExternalIP) && f.addr.String() != "255.255.255.255"
}
