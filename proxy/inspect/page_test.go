package inspect

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/proxy"
)

func service(name, ip string) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeNodePort, ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80, NodePort: 30080}},
		},
	}
}

// snapshot gives what a tracker makes of a Node and some Services; the first of them
// has an endpoint.
func snapshot(t *testing.T, services ...*v1.Service) proxy.Snapshot {
	t.Helper()
	return synced(t, track(services...))
}

func track(services ...*v1.Service) proxy.ServiceChangeTracker {
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	tracker.UpdateNode(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{v1.LabelTopologyZone: "east"}},
		Status:     v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}},
	})
	for _, s := range services {
		tracker.UpdateService(s)
	}
	tracker.UpdateEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "a", Labels: map[string]string{discoveryv1.LabelServiceName: services[0].Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(v1.ProtocolTCP), Port: new(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.11"}, NodeName: new("node-1")}},
	})
	return tracker
}

func synced(t *testing.T, tracker proxy.ServiceChangeTracker) proxy.Snapshot {
	t.Helper()
	tracker.Synced()
	s, err := tracker.Next(t.Context(), proxy.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// get asks for the page.
func get(t *testing.T, s proxy.Snapshot, query string) string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler("Mode test", func() proxy.Snapshot { return s }).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/any"+query, http.NoBody))
	body := w.Body.String()
	if w.Code != http.StatusOK || !strings.HasSuffix(body, "</html>\n") {
		t.Errorf("status %d, and the page ends with %q", w.Code, body[max(0, len(body)-200):])
	}
	if got := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none'") {
		t.Errorf("Content-Security-Policy is %q, want that nothing is loaded", got)
	}
	return body
}

func TestPage(t *testing.T) {
	web := service("<web>", "10.96.0.10")
	web.Spec.ExternalIPs = []string{"nonsense"}
	s := snapshot(t, web, service("other", "10.96.0.11"))
	for name, tc := range map[string]struct {
		query         string
		parts, absent []string
	}{
		"all":         {"", []string{"default/&lt;web&gt;:http/TCP/IPv4", "default/other", "10.96.0.10:80", "0.0.0.0:30080", "10.244.1.11:8080", "spec.externalIPs[0]", "Zone east", "Mode test, generation"}, []string{"<web>", "<b>"}},
		"filter":      {"?filter=other", []string{"<td>default/other"}, []string{"<td>default/&lt;web"}},
		"from pod":    {"?protocol=TCP&source=10.244.1.11&interface=veth0&destination=10.96.0.10:80", []string{"<b>forward</b>", "10.244.1.11:8080</code> masqueraded", "<li>"}, nil},
		"mapped":      {"?protocol=TCP&source=::ffff:10.244.1.11&interface=veth0&destination=[::ffff:10.96.0.10]:80", []string{"<b>forward</b>", "10.244.1.11:8080</code> masqueraded"}, nil},
		"from node":   {"?protocol=TCP&destination=10.96.0.10:80", []string{"<b>forward</b>"}, nil},
		"lower case":  {"?protocol=tcp&destination=10.96.0.10:80", []string{"<b>forward</b>", "<option selected>TCP"}, nil},
		"no protocol": {"?destination=10.96.0.10:80", []string{"<b>forward</b>", "<option selected>TCP"}, nil},
		"node port":   {"?protocol=TCP&source=198.51.100.1&interface=eth0&destination=192.0.2.1:30080", []string{"<b>forward</b>"}, nil},
		"nobody":      {"?protocol=TCP&source=198.51.100.1&interface=eth0&destination=203.0.113.1:80", []string{"<b>pass</b>"}, nil},
		"empty":       {"?protocol=UDP&destination=10.96.0.10:80", []string{"<b>reject</b>"}, nil},
		"no port":     {"?destination=10.96.0.10", []string{"the destination is an address and a port"}, []string{"<b>"}},
		"bad name":    {"?destination=10.96.0.10:80&source=x", []string{"the source is an address"}, []string{"<b>"}},
		"no family":   {"?destination=[fd00::1]:80", []string{"name a source"}, []string{"<b>"}},
	} {
		t.Run(name, func(t *testing.T) {
			body := get(t, s, tc.query)
			for _, part := range tc.parts {
				if !strings.Contains(body, part) {
					t.Errorf("the page lacks %q:\n%s", part, body)
				}
			}
			for _, part := range tc.absent {
				if strings.Contains(body, part) {
					t.Errorf("the page has %q:\n%s", part, body)
				}
			}
		})
	}
}

func TestPageBeforeAnythingIsKnown(t *testing.T) {
	if body := get(t, proxy.Snapshot{}, "?destination=10.96.0.10:80"); !strings.Contains(body, "Nothing has been programmed yet") {
		t.Errorf("the page is\n%s\nwant one that says that there is nothing", body)
	}
}

// Who makes very many Services, or bad ones, does not make a page without end.
func TestPageIsBounded(t *testing.T) {
	var all []*v1.Service
	for i := range maxShown + 7 {
		s := service(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.%d.%d", 1+i/200, i%200))
		s.Spec.Ports[0].NodePort = 0
		s.Spec.ExternalIPs = []string{"nonsense"}
		all = append(all, s)
	}
	body := get(t, snapshot(t, all...), "")
	if got := strings.Count(body, "<td>default/"); got != maxShown || !strings.Contains(body, "<p>7 more") {
		t.Errorf("the page has %d service ports, want %d and a word of 7 more", got, maxShown)
	}
	if got := strings.Count(body, "spec.externalIPs[0]"); got != maxShown {
		t.Errorf("the page has %d problems, want %d", got, maxShown)
	}
}

// Nor does one Service with very many endpoints or addresses.
func TestServicesOnThePageAreBounded(t *testing.T) {
	web := service("web", "10.96.0.10")
	balanced := service("balanced", "10.96.0.11")
	balanced.Spec.Type, balanced.Spec.Ports[0].NodePort = v1.ServiceTypeLoadBalancer, 0
	balanced.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.200"}}
	for i := range 200 {
		web.Spec.ExternalIPs = append(web.Spec.ExternalIPs, fmt.Sprintf("203.0.113.%d", i))
		balanced.Spec.LoadBalancerSourceRanges = append(balanced.Spec.LoadBalancerSourceRanges, fmt.Sprintf("198.51.%d.0/24", i))
	}
	tracker := track(web, balanced)
	many := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "b", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(v1.ProtocolTCP), Port: new(int32(8081))}},
	}
	for i := range 1000 {
		many.Endpoints = append(many.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.245.%d.%d", i/250, i%250)}})
	}
	tracker.UpdateEndpointSlice(many)
	body := get(t, synced(t, tracker), "?protocol=TCP&source=198.51.100.1&interface=eth0&destination=10.96.0.10:80")
	for part, want := range map[string]int{
		"<code>10.24": 2 * maxListed, "and 951 more": 2, // the pool and the answer
		"</code>: ": maxListed + 2, "and 152 more": 1, // and two of the other Service
		"198.51.": maxListed + 1, "and 150 more": 1, // and what was asked
	} {
		if got := strings.Count(body, part); got != want {
			t.Errorf("the page has %q %d times, want %d", part, got, want)
		}
	}
}
