package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func port(name string) *ServicePort { return &ServicePort{Name: portName(name)} }

func TestSnapshot(t *testing.T) {
	var zero Snapshot
	if _, ok := zero.Get(portName("a")); !zero.IsZero() || zero.Len() != 0 || zero.Generation() != 0 || zero.Node() != nil || ok {
		t.Errorf("zero Snapshot: got %+v, want an empty one", zero)
	}
	a, b, c, c2 := port("a"), port("b"), port("c"), port("c")
	c2.HasEndpoints = true
	s := NewSnapshot(nil, c, a, b, c2)
	if s.IsZero() || s.Generation() != 1 || s.Node() == nil || s.Len() != 3 {
		t.Errorf("got zero %v, generation %d, node %v, %d ports; want 3 ports of generation 1 and a node", s.IsZero(), s.Generation(), s.Node(), s.Len())
	}
	if got := slices.Collect(s.All()); !slices.Equal(got, []*ServicePort{a, b, c2}) {
		t.Errorf("All: got %v, want a, b and the later c", snapshotNames(s))
	}
	for range s.All() {
		break
	}
	for _, tc := range []struct {
		name     string
		from, to Snapshot
		want     []Change
	}{
		{"from nothing", zero, s, []Change{{nil, a}, {nil, b}, {nil, c2}}},
		{"to nothing", s, zero, []Change{{a, nil}, {b, nil}, {c2, nil}}},
		{"to itself", s, s, nil},
		{"another c", s, NewSnapshot(nil, a, b, c), []Change{{c2, c}}},
		{"the same, made again", s, NewSnapshot(nil, port("a"), port("b"), c2), nil},
		{"without b", s, s.Revert(zero, portName("b")), []Change{{b, nil}}},
	} {
		if got := slices.Collect(tc.to.Changes(tc.from)); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got changes %v, want %v", tc.name, got, tc.want)
		}
		for range tc.to.Changes(tc.from) {
			break
		}
	}
}

// For a reader that misses snapshots, a port that was changed and changed back has no change.
func TestChangedAndChangedBack(t *testing.T) {
	tr := newTestTracker()
	first := func() {
		tr.UpdateService(apiService("web", "10.96.0.1"))
		tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.1"))
	}
	first()
	before := newest(t, tr)
	tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.2"))
	between := newest(t, tr)
	first()
	after := newest(t, tr)
	if n := len(slices.Collect(between.Changes(before))); n != 1 {
		t.Errorf("another endpoint: got %d changes, want 1", n)
	}
	if got := slices.Collect(after.Changes(before)); len(got) != 0 {
		t.Errorf("the first endpoint again: got changes %v, want none", got)
	}
}

func TestRevert(t *testing.T) {
	a, b, b2, d := port("a"), port("b"), port("b"), port("d")
	old, node := NewSnapshot(nil, a, b), &Node{Name: "new"}
	now := NewSnapshot(node, b2, d)
	got := now.Revert(old, portName("a"), portName("b"), portName("d"), portName("unknown"))
	if list := slices.Collect(got.All()); !slices.Equal(list, []*ServicePort{a, b}) {
		t.Errorf("all reverted: got %q, want a and b as they were", snapshotNames(got))
	}
	if got.Node() != node || got.Generation() != now.Generation() {
		t.Errorf("got node %v of generation %d, want those of the new snapshot", got.Node(), got.Generation())
	}
	if list := slices.Collect(now.All()); !slices.Equal(list, []*ServicePort{b2, d}) {
		t.Errorf("Revert changed its receiver: got %q", snapshotNames(now))
	}
	if got := now.Revert(Snapshot{}); !slices.Equal(slices.Collect(got.All()), []*ServicePort{b2, d}) {
		t.Errorf("nothing reverted: got %q, want b and d", snapshotNames(got))
	}
}

func TestServicePortEqual(t *testing.T) {
	full := func() *ServicePort {
		return &ServicePort{
			Name:      portName("web"),
			Frontends: []Frontend{{Addr: netip.MustParseAddrPort("10.96.0.1:80"), AllowedSources: prefixes("10.0.0.0/8")}},
			Cluster:   []*endpoints.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80")}},
			Local:     []*endpoints.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80")}},
		}
	}
	if !full().Equal(full()) || full().Equal(nil) || (*ServicePort)(nil).Equal(full()) || !(*ServicePort)(nil).Equal(nil) {
		t.Error("Equal: want true for equal content and for two nil ports, false for nil and a port")
	}
	for i, change := range []func(*ServicePort){
		func(p *ServicePort) { p.Name.Family = v1.IPv6Protocol },
		func(p *ServicePort) { p.Frontends = nil },
		func(p *ServicePort) { p.Frontends[0].Kind = LoadBalancer },
		func(p *ServicePort) { p.Frontends[0].Addr = netip.AddrPort{} },
		func(p *ServicePort) { p.Frontends[0].Restricted = true },
		func(p *ServicePort) { p.Frontends[0].AllowedSources = nil },
		func(p *ServicePort) { p.Frontends[0].FromInside.Action = Drop },
		func(p *ServicePort) { p.Frontends[0].FromOutside.Masquerade = MasqueradeAlways },
		func(p *ServicePort) { p.Cluster[0].Ready = true },
		func(p *ServicePort) { p.Local = nil },
		func(p *ServicePort) { p.Draining = p.Cluster },
		func(p *ServicePort) { p.Affinity = affinity.Config{Timeout: 1} },
		func(p *ServicePort) { p.InternalLocal = true },
		func(p *ServicePort) { p.ExternalLocal = true },
		func(p *ServicePort) { p.HasEndpoints = true },
		func(p *ServicePort) { p.HealthCheckNodePort = 1 },
	} {
		p := full()
		if change(p); p.Equal(full()) || full().Equal(p) {
			t.Errorf("change %d: got %+v equal to %+v, want different", i, p, full())
		}
	}
}

func TestNames(t *testing.T) {
	named, unnamed := portName("web"), portName("web")
	unnamed.Port = ""
	if got := []string{named.String(), unnamed.String()}; !slices.Equal(got, []string{"ns/web:http/TCP/IPv4", "ns/web/TCP/IPv4"}) {
		t.Errorf("got names %q", got)
	}
	order := []ServicePortName{unnamed, named}
	for i, change := range []func(*ServicePortName){
		func(n *ServicePortName) { n.Family = v1.IPv6Protocol },
		func(n *ServicePortName) { n.Protocol = v1.ProtocolUDP },
		func(n *ServicePortName) { n.Port = "https" },
		func(n *ServicePortName) { n.Name = "web-2" },
		func(n *ServicePortName) { n.Namespace = "nt" },
	} {
		n := named
		if change(&n); n.Compare(named) <= 0 || named.Compare(n) >= 0 || n.Compare(n) != 0 {
			t.Errorf("change %d: got %s not after %s", i, n, named)
		}
		order = append(order, n)
	}
	if !slices.IsSortedFunc(order, ServicePortName.Compare) {
		t.Errorf("got %v out of order", order)
	}
	got := []string{}
	for i := range uint8(4) {
		got = append(got, FrontendKind(i).String(), Action(i).String(), Pool(i).String(), Masquerade(i).String())
	}
	want := []string{
		"ClusterIP", "pass", "cluster", "never", "ExternalIP", "forward", "local", "non-pods",
		"LoadBalancer", "reject", "?", "always", "NodePort", "drop", "?", "?",
	}
	testenv.Same(t, want, got, "names of constants")
}

func TestErrors(t *testing.T) {
	e := PortErrors{portName("b"): io.ErrClosedPipe, portName("a"): ErrUnsupported}
	want := "2 service ports not programmed: ns/a:http/TCP/IPv4: unsupported operation on this system; ns/b:http/TCP/IPv4: io: read/write on closed pipe"
	if e.Error() != want {
		t.Errorf("got %q, want %q", e.Error(), want)
	}
	if !errors.Is(e, ErrUnsupported) || !errors.Is(e, io.ErrClosedPipe) || errors.Is(e, ErrDataplaneLost) {
		t.Error("PortErrors: got other wrapped errors than its own")
	}
	for i := range 119 {
		e[portName(fmt.Sprintf("x%03d", i))] = io.ErrNoProgress
	}
	if got := e.Error(); strings.Count(got, "; ns/") != 99 || !strings.HasSuffix(got, "ns/x097:http/TCP/IPv4: "+io.ErrNoProgress.Error()+"; and 21 more") {
		t.Errorf("121 ports: got error %q, want the first hundred ports", got)
	}
	p := &Problem{Kind: "Node", Field: "spec.podCIDR", Err: io.ErrNoProgress}
	p.Name = "here"
	if got, want := p.Error(), "Node here: spec.podCIDR: "+io.ErrNoProgress.Error(); got != want || !errors.Is(p, io.ErrNoProgress) {
		t.Errorf("got problem %q, want %q, which wraps its reason", got, want)
	}
}

// TestProblemsComeAndGo: problems are in order, last as long as their cause, and a change of
// the problems makes a new snapshot.
func TestProblemsComeAndGo(t *testing.T) {
	tr := newTestTracker()
	last := newest(t, tr)
	for i, step := range []struct {
		do   func()
		want []string
	}{
		{func() { tr.UpdateService(apiService("web", "10.96.0.1", objects.ExternalIPs("x", "y"))) }, []string{
			`Service ns/web: spec.externalIPs[0]: "x" is not an IP address`,
			`Service ns/web: spec.externalIPs[1]: "y" is not an IP address`,
		}},
		{func() { tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.1", "x")) }, []string{
			`EndpointSlice ns/web-1: endpoints[1].addresses[0]: "x" is not an IP address, endpoint not used`,
			`Service ns/web: spec.externalIPs[0]: "x" is not an IP address`,
			`Service ns/web: spec.externalIPs[1]: "y" is not an IP address`,
		}},
		{func() { tr.UpdateNode(objects.Node("here", "", "x")) }, []string{
			`EndpointSlice ns/web-1: endpoints[1].addresses[0]: "x" is not an IP address, endpoint not used`,
			`Node here: status.addresses[0].address: "x" is not an IP address`,
			`Service ns/web: spec.externalIPs[0]: "x" is not an IP address`,
			`Service ns/web: spec.externalIPs[1]: "y" is not an IP address`,
		}},
		{func() { tr.UpdateService(apiService("web", "10.96.0.1", objects.ExternalIPs("x"))) }, []string{
			`EndpointSlice ns/web-1: endpoints[1].addresses[0]: "x" is not an IP address, endpoint not used`,
			`Node here: status.addresses[0].address: "x" is not an IP address`,
			`Service ns/web: spec.externalIPs[0]: "x" is not an IP address`,
		}},
		{func() { tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.1")) }, []string{
			`Node here: status.addresses[0].address: "x" is not an IP address`,
			`Service ns/web: spec.externalIPs[0]: "x" is not an IP address`,
		}},
		{func() { tr.DeleteService(objectName("web")) }, []string{`Node here: status.addresses[0].address: "x" is not an IP address`}},
		{func() { tr.UpdateNode(objects.Node("here", "", "192.168.0.1")) }, nil},
	} {
		step.do()
		s := newest(t, tr)
		testenv.Same(t, step.want, problemText(s), "step %d: problems", i)
		if s.Generation() != last.Generation()+1 {
			t.Errorf("step %d: got generation %d after %d, want the next", i, s.Generation(), last.Generation())
		}
		last = s
	}
}
