package endpoints

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// step is one call of a Cache, with its expected effects.
type step struct {
	update *discoveryv1.EndpointSlice
	delete string
	view   *View
	// notice are the ports for which the Cache calls changed, sorted.
	notice []string
	// want is the content of the Cache afterwards.
	want map[string][]string
}

func runSteps(t *testing.T, c *Cache, notified *notices, steps []step) {
	t.Helper()
	for i, s := range steps {
		switch {
		case s.update != nil:
			object := s.update.DeepCopy()
			must(t, c.Update(s.update))
			if diff := cmp.Diff(object, s.update); diff != "" {
				t.Errorf("step %d: object (-before +after):\n%s", i, diff)
			}
		case s.view != nil:
			c.SetView(*s.view)
		default:
			c.Delete(sliceName(s.delete))
		}
		testenv.Same(t, s.notice, notified.take(), "step %d: notices", i)
		if s.want == nil {
			s.want = map[string][]string{}
		}
		testenv.Same(t, s.want, contents(c), "step %d: contents", i)
		checkCache(t, c)
	}
}

func newTestCache() (*Cache, *notices) {
	var notified notices
	return NewCache(View{NodeName: "here", Zone: "a"}, notified.add), &notified
}

func TestCacheHistories(t *testing.T) { //nolint:funlen // a table
	type es = discoveryv1.EndpointSlice
	type lists = map[string][]string
	one := lists{httpPort: {"10.0.0.1:80 R"}}
	two := lists{httpPort: {"10.0.0.1:80 R", "10.0.0.2:80 R"}}
	a := apiSlice("a", "web", "10.0.0.1")
	b := apiSlice("b", "web", "10.0.0.2")
	twoPorts := objects.Edited(a, func(s *es) { s.Ports = append(s.Ports, objects.SlicePorts("https 443")...) })
	http := []string{httpPort}
	bothPorts := []string{httpPort, httpsPort}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"slice added, unchanged and deleted", []step{
			{update: a, notice: http, want: one},
			{update: a, want: one},
			{update: a.DeepCopy(), want: one},
			{delete: "a", notice: http},
			{delete: "a"},
		}},
		{"unknown slice deleted", []step{{delete: "unknown"}}},
		{"second slice added and deleted", []step{
			{update: a, notice: http, want: one},
			{update: b, notice: http, want: two},
			{delete: "b", notice: http, want: one},
			{update: b, notice: http, want: two},
			{delete: "a", notice: http, want: lists{httpPort: {"10.0.0.2:80 R"}}},
			{delete: "b", notice: http},
		}},
		{"endpoint added and removed", []step{
			{update: apiSlice("a", "web"), want: nil},
			{update: a, notice: http, want: one},
			{update: apiSlice("a", "web", "10.0.0.2", "10.0.0.1"), notice: http, want: two},
			{update: a, notice: http, want: one},
			{update: apiSlice("a", "web"), notice: http},
			{delete: "a"},
		}},
		{"port added and removed", []step{
			{update: a, notice: http, want: one},
			{update: twoPorts, notice: []string{httpsPort}, want: lists{httpPort: {"10.0.0.1:80 R"}, httpsPort: {"10.0.0.1:443 R"}}},
			{update: objects.Edited(twoPorts, func(s *es) { s.Ports = s.Ports[1:] }), notice: http, want: lists{httpsPort: {"10.0.0.1:443 R"}}},
			{update: a, notice: bothPorts, want: one},
			{update: objects.Edited(a, func(s *es) { s.Ports = nil }), notice: http},
		}},
		{"port is renamed", []step{
			{update: a, notice: http, want: one},
			{update: objects.Edited(a, func(s *es) { s.Ports[0].Name = new("https") }), notice: bothPorts, want: lists{httpsPort: {"10.0.0.1:80 R"}}},
		}},
		{"port changes its number", []step{
			{update: twoPorts, notice: bothPorts, want: lists{httpPort: {"10.0.0.1:80 R"}, httpsPort: {"10.0.0.1:443 R"}}},
			{update: objects.Edited(twoPorts, func(s *es) { *s.Ports[0].Port = 8080 }), notice: http,
				want: lists{httpPort: {"10.0.0.1:8080 R"}, httpsPort: {"10.0.0.1:443 R"}}},
		}},
		{"conditions change", []step{
			{update: a, notice: http, want: one},
			{update: apiSlice("a", "web", "10.0.0.1 T"), notice: http, want: lists{httpPort: {"10.0.0.1:80 T"}}},
			{update: apiSlice("a", "web", "10.0.0.1 X"), notice: http, want: lists{httpPort: {"10.0.0.1:80 X"}}},
			{update: apiSlice("a", "web", "10.0.0.1 U"), notice: http, want: lists{httpPort: {"10.0.0.1:80 U"}}},
			{update: a, notice: http, want: one},
		}},
		{"conditions change and change back", []step{
			{update: a, notice: http, want: one},
			{update: apiSlice("a", "web", "10.0.0.1 U"), notice: http, want: lists{httpPort: {"10.0.0.1:80 U"}}},
			{update: a, notice: http, want: one},
		}},
		{"only metadata change", []step{
			{update: a, notice: http, want: one},
			{update: objects.Edited(a, func(s *es) {
				s.ResourceVersion, s.Generation = "17", 3
				s.Annotations = map[string]string{"a": "b"}
				s.Labels["more"] = "labels"
				s.Endpoints[0].Zone = new("a")
				s.Endpoints[0].TargetRef = &v1.ObjectReference{Name: "pod"}
				s.Ports[0].AppProtocol = new("kubernetes.io/h2c")
			}), want: one},
		}},
		{"only the notation changes", []step{
			{update: a, notice: http, want: one},
			{update: apiSlice("a", "web", "10.0.0.1 R"), want: one},
			{update: apiSlice("a", "web", "010.0.0.1"), want: one},
			{update: objects.Edited(a, func(s *es) { s.Ports[0].Protocol = nil }), want: one},
		}},
		{"only the order changes", []step{
			{update: objects.Edited(twoPorts, func(s *es) { s.Endpoints = append(s.Endpoints, objects.Endpoint("10.0.0.2")) }), notice: bothPorts,
				want: lists{httpPort: {"10.0.0.1:80 R", "10.0.0.2:80 R"}, httpsPort: {"10.0.0.1:443 R", "10.0.0.2:443 R"}}},
			{update: objects.Edited(twoPorts, func(s *es) {
				s.Endpoints = append(s.Endpoints, objects.Endpoint("10.0.0.2"))
				slices.Reverse(s.Endpoints)
				slices.Reverse(s.Ports)
			}), want: lists{httpPort: {"10.0.0.1:80 R", "10.0.0.2:80 R"}, httpsPort: {"10.0.0.1:443 R", "10.0.0.2:443 R"}}},
		}},
		{"two numbers of one port in another order", []step{
			{update: objects.Edited(a, func(s *es) { s.Ports = append(s.Ports, objects.SlicePorts("http 81")...) }), notice: http,
				want: lists{httpPort: {"10.0.0.1:80 R", "10.0.0.1:81 R"}}},
			{update: objects.Edited(a, func(s *es) {
				s.Ports = append(objects.SlicePorts("http 81"), s.Ports...)
			}),
				want: lists{httpPort: {"10.0.0.1:80 R", "10.0.0.1:81 R"}}},
			{update: objects.Edited(a, func(s *es) { *s.Ports[0].Port = 81 }), notice: http, want: lists{httpPort: {"10.0.0.1:81 R"}}},
		}},
		{"slice moves to another service", []step{
			{update: twoPorts, notice: bothPorts, want: lists{httpPort: {"10.0.0.1:80 R"}, httpsPort: {"10.0.0.1:443 R"}}},
			{update: b, notice: http, want: lists{httpPort: {"10.0.0.1:80 R", "10.0.0.2:80 R"}, httpsPort: {"10.0.0.1:443 R"}}},
			{update: objects.Edited(twoPorts, func(s *es) { s.Labels[discoveryv1.LabelServiceName] = "app" }),
				notice: []string{"ns/app:http/TCP/IPv4", "ns/app:https/TCP/IPv4", httpPort, httpsPort},
				want: lists{
					"ns/app:http/TCP/IPv4": {"10.0.0.1:80 R"}, "ns/app:https/TCP/IPv4": {"10.0.0.1:443 R"},
					httpPort: {"10.0.0.2:80 R"},
				}},
			{delete: "a", notice: []string{"ns/app:http/TCP/IPv4", "ns/app:https/TCP/IPv4"}, want: lists{httpPort: {"10.0.0.2:80 R"}}},
		}},
		{"slice leaves its service", []step{
			{update: a, notice: http, want: one},
			{update: objects.Edited(a, func(s *es) { s.Labels = nil }), notice: http},
			{delete: "a"},
		}},
		{"slice changes its family", []step{
			{update: a, notice: http, want: one},
			{update: objects.Edited(a, func(s *es) {
				s.AddressType = discoveryv1.AddressTypeIPv6
				s.Endpoints[0].Addresses[0] = "2001:db8::1"
			}), notice: []string{httpPort, "ns/web:http/TCP/IPv6"}, want: lists{"ns/web:http/TCP/IPv6": {"[2001:db8::1]:80 R"}}},
		}},
		{"both families", []step{
			{update: a, notice: http, want: one},
			{update: objects.Edited(b, func(s *es) {
				s.AddressType = discoveryv1.AddressTypeIPv6
				s.Endpoints[0].Addresses[0] = "2001:db8::1"
			}), notice: []string{"ns/web:http/TCP/IPv6"}, want: lists{httpPort: {"10.0.0.1:80 R"}, "ns/web:http/TCP/IPv6": {"[2001:db8::1]:80 R"}}},
		}},
		{"one name in two namespaces", []step{
			{update: a, notice: http, want: one},
			{update: objects.Edited(a, func(s *es) { s.Namespace = "other" }), notice: []string{"other/web:http/TCP/IPv4"},
				want: lists{httpPort: {"10.0.0.1:80 R"}, "other/web:http/TCP/IPv4": {"10.0.0.1:80 R"}}},
			{delete: "a", notice: http, want: lists{"other/web:http/TCP/IPv4": {"10.0.0.1:80 R"}}},
		}},
		{"slices with different numbers of one port", []step{
			{update: a, notice: http, want: one},
			{update: objects.Edited(b, func(s *es) { *s.Ports[0].Port = 8080; s.Endpoints[0].Addresses[0] = "10.0.0.1" }), notice: http,
				want: lists{httpPort: {"10.0.0.1:80 R", "10.0.0.1:8080 R"}}},
		}},
		{"four services at once", []step{
			{update: apiSlice("s1", "s1", "10.0.0.1", "10.0.0.2 @here"), notice: []string{"ns/s1:http/TCP/IPv4"},
				want: lists{"ns/s1:http/TCP/IPv4": {"10.0.0.1:80 R", "10.0.0.2:80 R @here local"}}},
			{update: apiSlice("s2", "s2", "10.0.0.1"), notice: []string{"ns/s2:http/TCP/IPv4"},
				want: lists{"ns/s1:http/TCP/IPv4": {"10.0.0.1:80 R", "10.0.0.2:80 R @here local"}, "ns/s2:http/TCP/IPv4": {"10.0.0.1:80 R"}}},
			{delete: "s1", notice: []string{"ns/s1:http/TCP/IPv4"}, want: lists{"ns/s2:http/TCP/IPv4": {"10.0.0.1:80 R"}}},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, notified := newTestCache()
			runSteps(t, c, notified, tc.steps)
		})
	}
}

// TestCacheDuplicates: of several records of one address the same one is used, whatever the
// order of arrival, and after it is removed the next one.
func TestCacheDuplicates(t *testing.T) {
	records := []string{"10.0.0.1 R @here", "10.0.0.1 R @there", "10.0.0.1 N", "10.0.0.1 S", "10.0.0.1 U", "10.0.0.1 P", "10.0.0.1 T", "10.0.0.1 X"}
	want := []string{
		"10.0.0.1:80 R @here local", "10.0.0.1:80 R @there", "10.0.0.1:80 N", "10.0.0.1:80 S",
		"10.0.0.1:80 U", "10.0.0.1:80 P", "10.0.0.1:80 T", "10.0.0.1:80 X",
	}
	for first := range records {
		c, _ := newTestCache()
		for i := range records {
			n := (first + i*3) % len(records)
			must(t, c.Update(apiSlice(fmt.Sprint(n), "web", records[n], fmt.Sprintf("10.0.0.%d", 10+n))))
			if i%2 == 0 {
				checkCache(t, c)
			}
		}
		for n := range records {
			got := text(c.Endpoints(webPort("http")))
			if got[0] != want[n] || len(got) != len(records)-n+1 {
				t.Errorf("arrival from %d on, %d first records removed: got %q, want %q and %d others", first, n, got, want[n], len(records)-n)
			}
			c.Delete(sliceName(fmt.Sprint(n)))
			checkCache(t, c)
		}
	}
}

// TestCacheOverlappingSlices: slices with common endpoints give their union.
func TestCacheOverlappingSlices(t *testing.T) {
	c, notified := newTestCache()
	http := []string{httpPort}
	union := map[string][]string{httpPort: {"10.0.0.1:80 R", "10.0.0.2:80 R", "10.0.0.3:80 U", "10.0.0.4:80 R"}}
	runSteps(t, c, notified, []step{
		{update: apiSlice("a", "web", "10.0.0.1", "10.0.0.2", "10.0.0.3 U"), notice: http,
			want: map[string][]string{httpPort: {"10.0.0.1:80 R", "10.0.0.2:80 R", "10.0.0.3:80 U"}}},
		{update: apiSlice("b", "web", "10.0.0.2", "10.0.0.4", "10.0.0.1 U"), notice: http, want: union},
		{update: apiSlice("b", "web", "10.0.0.2 T", "10.0.0.4", "10.0.0.1 R"), notice: http, want: union},
		{delete: "a", notice: http, want: map[string][]string{httpPort: {"10.0.0.1:80 R", "10.0.0.2:80 T", "10.0.0.4:80 R"}}},
	})
}

func TestSetView(t *testing.T) {
	c, notified := newTestCache()
	plain := apiSlice("plain", "plain", "10.0.1.1", "10.0.1.2 @elsewhere")
	web := apiSlice("a", "web", "10.0.0.1 R @here zones=a", "10.0.0.2 R @there zones=b,c nodes=there")
	same := apiSlice("b", "web", "10.0.0.1 R @there", "10.0.0.3 R zones=a")
	for _, s := range []*discoveryv1.EndpointSlice{plain, web, same} {
		must(t, c.Update(s))
	}
	notified.take()
	plainList := []string{"10.0.1.1:80 R", "10.0.1.2:80 R @elsewhere"}
	want := func(web ...string) map[string][]string {
		return map[string][]string{"ns/plain:http/TCP/IPv4": plainList, httpPort: web}
	}
	http := []string{httpPort}
	fromHere := want("10.0.0.1:80 R @here local zone+", "10.0.0.2:80 R @there zone- node-", "10.0.0.3:80 R zone+")
	runSteps(t, c, notified, []step{
		{view: &View{NodeName: "here", Zone: "a"}, want: fromHere},
		{view: &View{NodeName: "there", Zone: "a"}, notice: http,
			want: want("10.0.0.1:80 R @here zone+", "10.0.0.2:80 R @there local zone- node+", "10.0.0.3:80 R zone+")},
		{view: &View{NodeName: "there", Zone: "c"}, notice: http,
			want: want("10.0.0.1:80 R @here zone-", "10.0.0.2:80 R @there local zone+ node+", "10.0.0.3:80 R zone-")},
		{view: &View{Zone: "d"}, notice: http,
			want: want("10.0.0.1:80 R @here zone-", "10.0.0.2:80 R @there zone- node-", "10.0.0.3:80 R zone-")},
		{view: &View{}, want: want("10.0.0.1:80 R @here zone-", "10.0.0.2:80 R @there zone- node-", "10.0.0.3:80 R zone-")},
		{view: &View{NodeName: "here", Zone: "a"}, notice: http, want: fromHere},
	})
}

// TestHintsChange: raw hints are kept even if they make no difference for the view.
func TestHintsChange(t *testing.T) {
	c, notified := newTestCache()
	http := []string{httpPort}
	runSteps(t, c, notified, []step{
		{update: apiSlice("a", "web", "10.0.0.1 R zones=b"), notice: http, want: map[string][]string{httpPort: {"10.0.0.1:80 R zone-"}}},
		{update: apiSlice("a", "web", "10.0.0.1 R zones=c"), want: map[string][]string{httpPort: {"10.0.0.1:80 R zone-"}}},
		{view: &View{NodeName: "here", Zone: "c"}, notice: http, want: map[string][]string{httpPort: {"10.0.0.1:80 R zone+"}}},
		{update: apiSlice("a", "web", "10.0.0.1 R"), notice: http, want: map[string][]string{httpPort: {"10.0.0.1:80 R"}}},
		{view: &View{NodeName: "here", Zone: "b"}, want: map[string][]string{httpPort: {"10.0.0.1:80 R"}}},
	})
}

// TestSameAddressInView: which of two records of one address in one slice is used can
// depend on the view, in both directions.
func TestSameAddressInView(t *testing.T) {
	c, notified := newTestCache()
	http := []string{httpPort}
	notHere, here := map[string][]string{httpPort: {"10.0.0.1:80 R zone-"}}, map[string][]string{httpPort: {"10.0.0.1:80 R zone+"}}
	runSteps(t, c, notified, []step{
		{update: apiSlice("a", "web", "10.0.0.1 R zones=a", "10.0.0.1 R zones=b"), notice: http, want: notHere},
		{view: &View{NodeName: "here", Zone: "b"}, want: notHere},
		{update: apiSlice("a", "web", "10.0.0.1 R zones=b"), notice: http, want: here},
		{update: apiSlice("a", "web", "10.0.0.1 R zones=b", "10.0.0.1 R zones=a"), notice: http, want: notHere},
		{view: &View{NodeName: "here", Zone: "a"}, want: notHere},
		{update: apiSlice("a", "web", "10.0.0.1 R zones=a"), notice: http, want: here},
		{delete: "a", notice: http},
	})
}

// TestHintsAndSelect: the effect of hints on a node, from slice to selection.
func TestHintsAndSelect(t *testing.T) {
	for _, tc := range []struct {
		name      string
		view      View
		endpoints []string
		want      selected
	}{
		{"zone", View{"me", "a"}, []string{"10.0.0.1 R zones=a", "10.0.0.2 R zones=b"}, selected{Cluster: "1"}},
		{"one of several zones", View{"me", "c"}, []string{"10.0.0.1 R zones=a,b,c", "10.0.0.2 R zones=b,c", "10.0.0.3 R zones=d"}, selected{Cluster: "1 2"}},
		{"no zone known", View{"me", ""}, []string{"10.0.0.1 R zones=a", "10.0.0.2 R zones="}, selected{Cluster: "1 2"}},
		{"another zone", View{"me", "z"}, []string{"10.0.0.1 R zones=a", "10.0.0.2 R zones=b"}, selected{Cluster: "1 2"}},
		{"node", View{"me", "a"}, []string{"10.0.0.1 R nodes=you", "10.0.0.2 R nodes=you,me"}, selected{Cluster: "2"}},
		{"no node known", View{"", "a"}, []string{"10.0.0.1 R nodes=you", "10.0.0.2 R nodes="}, selected{Cluster: "1 2"}},
		{"no node hint for us, zone", View{"me", "a"}, []string{"10.0.0.1 R nodes=you zones=a", "10.0.0.2 R nodes=you zones=b"}, selected{Cluster: "1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := NewCache(tc.view, nil)
			must(t, c.Update(apiSlice("a", "web", tc.endpoints...)))
			tc.want.Any, tc.want.Local = true, "-"
			testenv.Same(t, tc.want, summary(Select(c.Endpoints(webPort("http")), onlyCluster())), "selection")
		})
	}
}

// TestNoticeComesLast: when changed is called, Endpoints returns the new endpoints.
func TestNoticeComesLast(t *testing.T) {
	var c *Cache
	got := map[string][]string{}
	c = NewCache(View{}, func(k ServicePortName) { got[keyText(k)] = text(c.Endpoints(k)) })
	must(t, c.Update(apiSlice("a", "web", "10.0.0.1")))
	must(t, c.Update(objects.Edited(apiSlice("a", "app", "10.0.0.2"), func(*discoveryv1.EndpointSlice) {})))
	want := map[string][]string{httpPort: nil, "ns/app:http/TCP/IPv4": {"10.0.0.2:80 R"}}
	testenv.Same(t, want, got, "endpoints at the time of notice")
}

func TestEndpointsOfUnknownPort(t *testing.T) {
	c, _ := newTestCache()
	must(t, c.Update(apiSlice("a", "web", "10.0.0.1")))
	if got := c.Endpoints(webPort("unknown")); got != nil {
		t.Errorf("endpoints of an unknown port: got %q, want nil", text(got))
	}
}
