package snapshots

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/proxy"
)

// Edit changes a service port before it is published.
type Edit = func(*proxy.ServicePort)

// Name returns the name of a service port of IPv4. A text is namespace/name:port/PROTOCOL, of
// which everything but the name may be missing: the namespace is "test" then, the protocol TCP.
func Name(text string) proxy.ServicePortName {
	n := proxy.ServicePortName{Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
	for _, p := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} {
		if before, found := strings.CutSuffix(text, "/"+string(p)); found {
			text, n.Protocol = before, p
		}
	}
	text, n.Port, _ = strings.Cut(text, ":")
	if !strings.Contains(text, "/") {
		text = "test/" + text
	}
	n.NamespacedName = objects.Name(text)
	return n
}

// Port makes a service port of the family of its last frontend. Its frontends forward to the
// pool Cluster; without endpoints, they reject.
func Port(name, frontends string, pool ...string) *proxy.ServicePort {
	p := &proxy.ServicePort{Name: Name(name), Cluster: Endpoints(pool...), HasEndpoints: len(pool) > 0}
	route := proxy.TrafficRoute{Action: proxy.Forward}
	if len(pool) == 0 {
		route.Action = proxy.Reject
	}
	for text := range strings.FieldsSeq(frontends) {
		f := frontend(text)
		f.FromInside, f.FromOutside = route, route
		p.Name.Family = ipaddr.FamilyOf(f.Addr.Addr())
		p.Frontends = append(p.Frontends, f)
	}
	return p
}

// frontend makes a frontend whose routes are zero.
func frontend(text string) proxy.Frontend {
	kind := proxy.ClusterIP
	for prefix, k := range map[string]proxy.FrontendKind{"ext=": proxy.ExternalIP, "lb=": proxy.LoadBalancer} {
		if after, found := strings.CutPrefix(text, prefix); found {
			kind, text = k, after
		}
	}
	if text[0] == ':' {
		text = "0.0.0.0" + text
	}
	a := netip.MustParseAddrPort(text)
	if a.Addr().IsUnspecified() {
		kind = proxy.NodePort
	}
	return proxy.Frontend{Kind: kind, Addr: a}
}

// Endpoints makes endpoints, sorted. They have port 8080 if a text has none.
func Endpoints(texts ...string) (pool []*endpoints.Endpoint) {
	for _, text := range texts {
		words := strings.Fields(text)
		e := &endpoints.Endpoint{Ready: true, Serving: true}
		if a, err := netip.ParseAddr(words[0]); err == nil {
			e.Addr = netip.AddrPortFrom(a, 8080)
		} else {
			e.Addr = netip.MustParseAddrPort(words[0])
		}
		for _, w := range words[1:] {
			switch {
			case w == "local":
				e.Local = true
			case w[0] == '@':
				e.NodeName = w[1:]
			default:
				l := objects.ConditionsOf(w)
				e.Ready, e.Serving, e.Terminating = l.Ready, l.Serving, l.Terminating
			}
		}
		pool = append(pool, e)
	}
	slices.SortFunc(pool, (*endpoints.Endpoint).Compare)
	return pool
}

// At makes ready endpoints at addresses, sorted.
func At(addrs ...netip.AddrPort) []*endpoints.Endpoint {
	return Endpoints(objects.Many(len(addrs), func(i int) string { return addrs[i].String() })...)
}

// Node makes a node named "node" that serves node ports at all of its addresses.
func Node(addrs ...string) *proxy.Node {
	return &proxy.Node{Name: "node", Addresses: Addrs(addrs...), NodePorts: proxy.NodePortAddresses{All: true}}
}

// Addrs parses addresses.
func Addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// AddrPorts parses addresses with ports.
func AddrPorts(texts ...string) (all []netip.AddrPort) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddrPort(text))
	}
	return all
}

// Prefixes parses prefixes.
func Prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// With returns a changed copy of a service port. Edits may change the frontends, but must replace
// the pools.
func With(p *proxy.ServicePort, edits ...Edit) *proxy.ServicePort {
	c := *p
	c.Frontends = slices.Clone(p.Frontends)
	for _, edit := range edits {
		edit(&c)
	}
	return &c
}

// EachWith returns a snapshot of changed copies of all service ports of another one.
func EachWith(s proxy.Snapshot, edits ...Edit) proxy.Snapshot {
	var all []*proxy.ServicePort
	for p := range s.All() {
		all = append(all, With(p, edits...))
	}
	return proxy.NewSnapshot(s.Node(), all...)
}

// Pool returns an edit that replaces the pool Cluster.
func Pool(texts ...string) Edit {
	return func(p *proxy.ServicePort) { p.Cluster = Endpoints(texts...) }
}

// Routes returns an edit that sets the routes of all frontends.
func Routes(inside, outside proxy.TrafficRoute) Edit {
	return func(p *proxy.ServicePort) {
		for i := range p.Frontends {
			p.Frontends[i].FromInside, p.Frontends[i].FromOutside = inside, outside
		}
	}
}

// Next returns the first snapshot of a source that differs from another one, within a minute.
func Next(t testing.TB, source proxy.Source, after proxy.Snapshot) proxy.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := source.Next(ctx, after)
	if err != nil {
		t.Fatal(fmt.Errorf("next snapshot: %w", err))
	}
	return s
}

// Of returns what a tracker makes of API objects.
func Of(t testing.TB, o proxy.TrackerOptions, all ...metav1.Object) proxy.Snapshot {
	t.Helper()
	tracker := proxy.NewServiceChangeTracker(o)
	objects.Hand(tracker, all...)
	tracker.Synced()
	return Next(t, tracker, proxy.Snapshot{})
}
