package proxy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// addrs returns the cluster endpoints of a port, or nil if there is no such port.
func addrs(s Snapshot, name ServicePortName) []string {
	p, ok := s.Get(name)
	if !ok {
		return nil
	}
	out := []string{}
	for _, e := range p.Cluster {
		out = append(out, e.Addr.String())
	}
	return out
}

func TestFirstSnapshot(t *testing.T) {
	s := newest(t, newTestTracker())
	if s.IsZero() || s.Generation() != 1 || s.Len() != 0 || s.Node().Name != "here" {
		t.Errorf("got zero %v, generation %d, %d ports, node %+v; want an empty snapshot of generation 1 for node here", s.IsZero(), s.Generation(), s.Len(), s.Node())
	}
	if _, err := newTestTracker().Next(ended(t), s); err == nil {
		t.Error("got a second snapshot although nothing changed")
	}
	zero := newest(t, func() Source { tr := NewServiceChangeTracker(TrackerOptions{}); tr.Synced(); return tr }())
	if zero.Node() == nil || zero.Node().Name != "" {
		t.Errorf("with zero options: got node %+v, want one without a name", zero.Node())
	}
}

// TestChangesThatAreNone: an event without difference, or one that is reverted before the
// next snapshot, makes no new generation.
func TestChangesThatAreNone(t *testing.T) { //nolint:funlen // a table
	web := func(edits ...edit) *v1.Service { return apiService("web", "10.96.0.1", edits...) }
	bad := objects.ExternalIPs("nonsense", "198.51.100.1")
	one := func() *discoveryv1.EndpointSlice { return apiSlice("web-1", "web", "10.0.0.1", "10.0.0.2") }
	for _, tc := range []struct {
		name string
		do   func(*ServiceChangeTracker)
	}{
		{"same Service", func(tr *ServiceChangeTracker) { tr.UpdateService(web(bad)) }},
		{"Service metadata", func(tr *ServiceChangeTracker) {
			tr.UpdateService(web(bad, func(s *v1.Service) { s.ResourceVersion, s.Labels = "2", map[string]string{"a": "b"} }))
		}},
		{"unlisted annotation", func(tr *ServiceChangeTracker) {
			tr.UpdateService(web(bad, func(s *v1.Service) { s.Annotations = map[string]string{"a": "b"} }))
		}},
		{"Service changed and changed back", func(tr *ServiceChangeTracker) {
			tr.UpdateService(web(objects.NodePort(30080)))
			tr.UpdateService(web(bad))
		}},
		{"Service deleted and added again", func(tr *ServiceChangeTracker) { tr.DeleteService(objectName("web")); tr.UpdateService(web(bad)) }},
		{"Service headless and back", func(tr *ServiceChangeTracker) {
			tr.UpdateService(apiService("web", "None"))
			tr.UpdateService(web(bad))
		}},
		{"port renamed and back", func(tr *ServiceChangeTracker) {
			tr.UpdateService(web(bad, func(s *v1.Service) { s.Spec.Ports[0].Name = "x" }))
			tr.UpdateService(web(bad))
		}},
		{"another Service added and deleted", func(tr *ServiceChangeTracker) {
			tr.UpdateService(apiService("other", "10.96.0.2", objects.Created(1), objects.ExternalIPs("198.51.100.1", "bad")))
			tr.DeleteService(objectName("other"))
		}},
		{"unknown Service deleted", func(tr *ServiceChangeTracker) { tr.DeleteService(objectName("other")) }},
		{"same slice", func(tr *ServiceChangeTracker) { tr.UpdateEndpointSlice(one()) }},
		{"slice metadata", func(tr *ServiceChangeTracker) {
			s := one()
			s.ResourceVersion, s.Annotations = "2", map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": "x"}
			tr.UpdateEndpointSlice(s)
		}},
		{"slice in another order", func(tr *ServiceChangeTracker) {
			tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.2", "10.0.0.1"))
		}},
		{"slice changed and changed back", func(tr *ServiceChangeTracker) {
			tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.1 T"))
			tr.UpdateEndpointSlice(one())
		}},
		{"slice deleted and added again", func(tr *ServiceChangeTracker) {
			tr.DeleteEndpointSlice(objectName("web-1"))
			tr.UpdateEndpointSlice(one())
		}},
		{"slice of another Service and back", func(tr *ServiceChangeTracker) {
			tr.UpdateEndpointSlice(apiSlice("web-1", "other", "10.0.0.1", "10.0.0.2"))
			tr.UpdateEndpointSlice(one())
		}},
		{"endpoints known twice", func(tr *ServiceChangeTracker) { tr.UpdateEndpointSlice(apiSlice("web-2", "web", "10.0.0.2")) }},
		{"slice of no Service", func(tr *ServiceChangeTracker) { tr.UpdateEndpointSlice(apiSlice("x", "other", "10.0.0.2")) }},
		{"unknown slice deleted", func(tr *ServiceChangeTracker) { tr.DeleteEndpointSlice(objectName("x")) }},
		{"same Node", func(tr *ServiceChangeTracker) { tr.UpdateNode(objects.Node("here", "", "192.168.0.1")) }},
		{"other Node", func(tr *ServiceChangeTracker) { tr.UpdateNode(objects.Node("there", "b", "192.168.0.2")) }},
		{"Node changed and changed back", func(tr *ServiceChangeTracker) {
			tr.UpdateNode(objects.Node("here", "b", "192.168.0.2"))
			tr.UpdateNode(objects.Node("here", "", "192.168.0.1"))
		}},
		{"nothing at all", func(tr *ServiceChangeTracker) { tr.UpdateService(nil); tr.UpdateEndpointSlice(nil); tr.Synced() }},
	} {
		tr := newTestTracker()
		tr.UpdateService(web(bad))
		tr.UpdateEndpointSlice(one())
		before := newest(t, tr)
		tc.do(tr)
		after := newest(t, tr)
		if after.Generation() != before.Generation() {
			t.Errorf("%s: got generation %d, want %d; differences: %q", tc.name, after.Generation(), before.Generation(), differences(after, before))
		}
		for c := range after.Changes(before) {
			t.Errorf("%s: got change %+v, want none", tc.name, c)
		}
	}
}

// TestOneStepAtATime: every step makes one generation with the named changes.
func TestOneStepAtATime(t *testing.T) {
	tr := newTestTracker()
	last := newest(t, tr)
	for i, step := range []struct {
		do   func()
		want []string
	}{
		{func() { tr.UpdateService(apiService("web", "10.96.0.1")) }, []string{"+web []"}},
		{func() { tr.UpdateEndpointSlice(apiSlice("web-1", "web", "10.0.0.1")) }, []string{"web [10.0.0.1:8080]"}},
		{func() { tr.UpdateEndpointSlice(apiSlice("web-2", "web", "10.0.0.2", "10.0.0.1 U")) }, []string{"web [10.0.0.1:8080 10.0.0.2:8080]"}},
		{func() { tr.UpdateEndpointSlice(apiSlice("web-1", "web")) }, []string{"web [10.0.0.2:8080]"}},
		{func() { tr.UpdateService(apiService("api", "10.96.0.2")) }, []string{"+api []"}},
		{func() { tr.UpdateEndpointSlice(apiSlice("web-2", "api", "10.0.0.2")) }, []string{"api [10.0.0.2:8080]", "web []"}},
		{func() { tr.DeleteEndpointSlice(objectName("web-2")) }, []string{"api []"}},
		{func() { tr.UpdateService(apiService("web", "None")); tr.DeleteService(objectName("api")) }, []string{"-api", "-web"}},
	} {
		step.do()
		s := newest(t, tr)
		var got []string
		for c := range s.Changes(last) {
			switch {
			case c.Old == nil:
				got = append(got, fmt.Sprint("+", c.New.Name.Name, " ", addrs(s, c.New.Name)))
			case c.New == nil:
				got = append(got, "-"+c.Old.Name.Name)
			default:
				got = append(got, fmt.Sprint(c.New.Name.Name, " ", addrs(s, c.New.Name)))
			}
		}
		testenv.Same(t, step.want, got, "step %d: changes", i)
		if s.Generation() != last.Generation()+1 {
			t.Errorf("step %d: got generation %d after %d, want the next", i, s.Generation(), last.Generation())
		}
		last = s
	}
}

// TestUnchangedPortsAreShared: after a change of one port the others are the same values.
func TestUnchangedPortsAreShared(t *testing.T) {
	tr := newTestTracker()
	two := objects.Ports("http 80", "https 443")
	tr.UpdateService(apiService("web", "10.96.0.1", two))
	tr.UpdateService(apiService("api", "10.96.0.2"))
	before := newest(t, tr)
	tr.UpdateService(apiService("web", "10.96.0.1", two, func(s *v1.Service) { s.Spec.Ports[1].Port = 444 }))
	tr.UpdateEndpointSlice(apiSlice("api-1", "api", "10.0.0.1"))
	after := newest(t, tr)
	if a, b := get(t, before, portName("web")), get(t, after, portName("web")); a != b {
		t.Error("web:http is another value, although it has not changed")
	}
	if a, b := get(t, before, portName("api")).Frontends, get(t, after, portName("api")).Frontends; a[0].Equal(b[0]) {
		t.Error("api:http has the same routes with and without endpoints")
	}
}

func TestAccept(t *testing.T) {
	label := func(key, value string) edit {
		return func(s *v1.Service) { s.Labels = map[string]string{key: value} }
	}
	for _, tc := range []struct {
		name    string
		service *v1.Service
		accept  func(*v1.Service) bool
		want    bool
	}{
		{"plain", apiService("web", "10.96.0.1"), nil, true},
		{"other label", apiService("web", "10.96.0.1", label("app", "web")), nil, true},
		{"other proxy", apiService("web", "10.96.0.1", label("service.kubernetes.io/service-proxy-name", "mesh")), nil, false},
		{"other proxy, empty", apiService("web", "10.96.0.1", label("service.kubernetes.io/service-proxy-name", "")), nil, false},
		{"label of endpoints alone", apiService("web", "10.96.0.1", label("service.kubernetes.io/headless", "")), nil, true},
		{"own predicate", apiService("web", "10.96.0.1", label("service.kubernetes.io/service-proxy-name", "mesh")), func(*v1.Service) bool { return true }, true},
		{"own refusal", apiService("web", "10.96.0.1"), func(*v1.Service) bool { return false }, false},
	} {
		tr := newTestTracker(func(o *TrackerOptions) { o.Accept = tc.accept })
		tr.UpdateService(tc.service)
		if _, got := newest(t, tr).Get(portName("web")); got != tc.want {
			t.Errorf("%s: proxied: got %v, want %v", tc.name, got, tc.want)
		}
	}
	tr := newTestTracker()
	tr.UpdateService(apiService("web", "10.96.0.1", objects.ExternalIPs("nonsense")))
	tr.UpdateService(apiService("web", "10.96.0.1", objects.ExternalIPs("nonsense"), label("service.kubernetes.io/service-proxy-name", "mesh")))
	if s := newest(t, tr); s.Len() != 0 || len(problemText(s)) != 0 {
		t.Errorf("label added later: got %q and problems %q, want neither", snapshotNames(s), problemText(s))
	}
}

// TestDuplicateEndpoints: of two records of one address the one that does not terminate,
// or is ready, is used, whatever the order.
func TestDuplicateEndpoints(t *testing.T) {
	list := []*discoveryv1.EndpointSlice{
		apiSlice("a", "web", "10.0.0.1 U", "10.0.0.2 T"),
		apiSlice("b", "web", "10.0.0.1"),
		apiSlice("c", "web", "10.0.0.2 U", "10.0.0.1 T"),
	}
	for i := range list {
		for j := range list {
			tr := newTestTracker()
			tr.UpdateService(apiService("web", "10.96.0.1"))
			for _, k := range []int{i, j, 0, 1, 2} {
				tr.UpdateEndpointSlice(list[k])
			}
			testenv.Same(t, []string{"10.0.0.1:8080"}, addrs(newest(t, tr), portName("web")), "first %s, then %s: endpoints", list[i].Name, list[j].Name)
		}
	}
}

func TestBadObjectsDoNotPanic(t *testing.T) {
	tr := newTestTracker()
	tr.UpdateService(&v1.Service{})
	tr.UpdateNode(&v1.Node{})
	tr.UpdateEndpointSlice(&discoveryv1.EndpointSlice{})
	testenv.Same(t, []string{"EndpointSlice : metadata.name: required, slice not used"}, problemText(newest(t, tr)), "problems of an empty slice")
	tr.DeleteEndpointSlice(types.NamespacedName{})
	tr.UpdateEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  apiSlice("bare", "web").ObjectMeta,
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{}, {Name: new("http")}, {Name: new("http"), Port: new(int32(8080))}, {Name: new("x"), Port: new(int32(-1))}},
		Endpoints:   []discoveryv1.Endpoint{{}, {Addresses: []string{"nonsense"}}, {Addresses: []string{""}}, {Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"fd00::1"}}},
	})
	tr.UpdateService(apiService("web", "10.96.0.1", objects.Ports("http 80"), func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP }))
	s := newest(t, tr)
	testenv.Same(t, []string{"10.0.0.1:8080"}, addrs(s, portName("web")), "endpoints")
	for p := range s.Problems() {
		if p.Kind != "EndpointSlice" || p.NamespacedName != objectName("bare") || p.Field == "" || p.Err == nil {
			t.Errorf("got problem %+v, want one of EndpointSlice ns/bare with field and reason", p)
		}
	}
	if n := len(problemText(s)); n < 4 {
		t.Errorf("got problems %q, want one for each of the bad parts", problemText(s))
	}
}

// at returns endpoints by the last number of their address.
func at(numbers ...byte) (all []*endpoints.Endpoint) {
	for _, n := range numbers {
		all = append(all, &endpoints.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 80)})
	}
	return all
}

func TestChangeEndpoints(t *testing.T) {
	for name, c := range map[string]struct {
		old, new     *ServicePort
		gained, lost []*endpoints.Endpoint
	}{
		"none":     {},
		"equal":    {old: &ServicePort{Cluster: at(1, 2)}, new: &ServicePort{Cluster: at(1, 2)}},
		"new port": {new: &ServicePort{Cluster: at(2, 1), Local: at(1)}, gained: at(1, 2)},
		"removed":  {old: &ServicePort{Cluster: at(1), Local: at(2), Draining: at(3)}, lost: at(1, 2, 3)},
		"both":     {old: &ServicePort{Cluster: at(1, 2)}, new: &ServicePort{Cluster: at(2, 3)}, gained: at(3), lost: at(1)},
		"drains":   {old: &ServicePort{Cluster: at(1, 2)}, new: &ServicePort{Cluster: at(2), Draining: at(1)}},
		"policy":   {old: &ServicePort{Cluster: at(1, 2)}, new: &ServicePort{Local: at(1)}, lost: at(2)},
	} {
		t.Run(name, func(t *testing.T) {
			gained, lost := Change{Old: c.old, New: c.new}.Endpoints()
			equal := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
			if diff := cmp.Diff(addressesOf(c.gained), gained, equal); diff != "" {
				t.Errorf("gained (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(addressesOf(c.lost), lost, equal); diff != "" {
				t.Errorf("lost (-want +got):\n%s", diff)
			}
		})
	}
}

// addressesOf returns the addresses of endpoints.
func addressesOf(all []*endpoints.Endpoint) (out []netip.AddrPort) {
	for _, e := range all {
		out = append(out, e.Addr)
	}
	return out
}
