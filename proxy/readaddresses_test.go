package proxy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestReadServiceExternalAddresses(t *testing.T) { //nolint:funlen // a table
	v4 := func(frontends string) string { return `http/TCP/IPv4 ["ClusterIP 10.96.0.1:80"` + frontends + `]` }
	mode := func(mode v1.LoadBalancerIPMode) edit {
		return func(s *v1.Service) { s.Status.LoadBalancer.Ingress[0].IPMode = new(mode) }
	}
	both := objects.ClusterIPs("10.96.0.1", "fd00::1")
	cases := []readCase{
		{"VIP", apiService("web", "10.96.0.1", objects.LoadBalancer("203.0.113.1")), []string{"policy:", v4(` "LoadBalancer 203.0.113.1:80"`)}},
		{"ipMode VIP", apiService("web", "10.96.0.1", objects.LoadBalancer("203.0.113.1"), mode(v1.LoadBalancerIPModeVIP)), []string{"policy:", v4(` "LoadBalancer 203.0.113.1:80"`)}},
		{"ipMode Proxy", apiService("web", "10.96.0.1", objects.LoadBalancer("203.0.113.1"), mode(v1.LoadBalancerIPModeProxy)), []string{"policy:", v4("")}},
		{
			"ingress of any type of Service", apiService("web", "10.96.0.1", objects.LoadBalancer("203.0.113.1"), func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeClusterIP }),
			[]string{"policy:", v4(` "LoadBalancer 203.0.113.1:80"`)},
		},
		{
			"host name only", apiService("web", "10.96.0.1", func(s *v1.Service) {
				s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{Hostname: "lb.example.org"}}
			}), []string{"policy:", v4("")},
		},
		{
			"addresses of both families", apiService("web", "", both, objects.ExternalIPs("198.51.100.1", "2001:db8::1"), objects.LoadBalancer("2001:db8::2", "203.0.113.1")),
			[]string{
				"policy:", v4(` "ExternalIP 198.51.100.1:80" "LoadBalancer 203.0.113.1:80"`),
				`http/TCP/IPv6 ["ClusterIP [fd00::1]:80" "ExternalIP [2001:db8::1]:80" "LoadBalancer [2001:db8::2]:80"]`,
			},
		},
		{
			"duplicates", apiService("web", "10.96.0.1", objects.ExternalIPs("198.51.100.1", "198.51.100.1", "198.051.100.001"), objects.LoadBalancer("203.0.113.1", "203.0.113.1")),
			[]string{"policy:", v4(` "ExternalIP 198.51.100.1:80" "LoadBalancer 203.0.113.1:80"`)},
		},
		{
			"the ranges apply to an external IP that is also an ingress",
			apiService("web", "10.96.0.1", objects.ExternalIPs("203.0.113.1"), objects.LoadBalancer("203.0.113.1"), objects.SourceRanges("192.0.2.0/24")),
			[]string{"policy:", v4(` "LoadBalancer 203.0.113.1:80 [192.0.2.0/24]"`)},
		},
		{"its own ClusterIP", apiService("web", "10.96.0.1", objects.ExternalIPs("10.96.0.1")), []string{"policy:", v4("")}},
		{"blank", apiService("web", "10.96.0.1", objects.ExternalIPs("", "  ")), []string{"policy:", v4("")}},
		{
			"invalid ones are reported once and by index", apiService("web", "", both,
				objects.ExternalIPs("198.51.100.1", "nonsense", "127.0.0.1", "fe80::1%eth0"), objects.LoadBalancer("0.0.0.0", "224.0.0.1", "169.254.0.1")),
			[]string{
				"policy:", v4(` "ExternalIP 198.51.100.1:80"`), `http/TCP/IPv6 ["ClusterIP [fd00::1]:80"]`,
				`! spec.externalIPs[1]: "nonsense" is not an IP address`,
				"! spec.externalIPs[2]: 127.0.0.1 is a loopback address",
				`! spec.externalIPs[3]: "fe80::1%eth0" has a zone`,
				"! status.loadBalancer.ingress[0].ip: 0.0.0.0 is the unspecified address",
				"! status.loadBalancer.ingress[1].ip: 224.0.0.1 is a multicast address",
				"! status.loadBalancer.ingress[2].ip: 169.254.0.1 is a link-local address",
			},
		},
		{
			"reserved ones are reported, and the rest works", apiService("web", "10.96.0.1",
				objects.ExternalIPs("0.0.0.1", "198.51.100.1", "240.0.0.1", "255.255.255.255", "::ffff:240.0.0.2"), objects.LoadBalancer("240.0.0.3", "255.255.255.255", "0.1.2.3")),
			[]string{
				"policy:", v4(` "ExternalIP 198.51.100.1:80" "LoadBalancer 240.0.0.3:80"`),
				"! spec.externalIPs[0]: 0.0.0.1 is an address of 0.0.0.0/8, which no host has",
				"! spec.externalIPs[2]: 240.0.0.1 is an address of 240.0.0.0/4, which is reserved",
				"! spec.externalIPs[3]: 255.255.255.255 is the broadcast address",
				"! spec.externalIPs[4]: 240.0.0.2 is an address of 240.0.0.0/4, which is reserved",
				"! status.loadBalancer.ingress[1].ip: 255.255.255.255 is the broadcast address",
				"! status.loadBalancer.ingress[2].ip: 0.1.2.3 is an address of 0.0.0.0/8, which no host has",
			},
		},
		{
			"invalid IPv6 addresses", apiService("web", "", both, objects.ExternalIPs("::", "::1", "ff0e::1", "fe80::1", "2001:db8::1"), objects.LoadBalancer("::1")),
			[]string{
				"policy:", v4(""), `http/TCP/IPv6 ["ClusterIP [fd00::1]:80" "ExternalIP [2001:db8::1]:80"]`,
				"! spec.externalIPs[0]: :: is the unspecified address",
				"! spec.externalIPs[1]: ::1 is a loopback address",
				"! spec.externalIPs[2]: ff0e::1 is a multicast address",
				"! spec.externalIPs[3]: fe80::1 is a link-local address",
				"! status.loadBalancer.ingress[0].ip: ::1 is a loopback address",
			},
		},
	}
	runReadCases(t, &TrackerOptions{}, cases)
	runReadCases(t, &TrackerOptions{IgnoreExternalIPs: true}, []readCase{{
		"external IPs ignored", apiService("web", "10.96.0.1", objects.ExternalIPs("198.51.100.1", "nonsense"), objects.ExternalLocal, objects.NodePort(30080)),
		[]string{"policy:", v4(` "NodePort 0.0.0.0:30080"`)},
	}})
}

func TestReadServiceSourceRanges(t *testing.T) {
	reading := func(v4, v6 string, problems ...string) []string {
		return append([]string{
			"policy:",
			`http/TCP/IPv4 ["ClusterIP 10.96.0.1:80" "ExternalIP 198.51.100.1:80" "LoadBalancer 203.0.113.1:80` + v4 + `"]`,
			`http/TCP/IPv6 ["ClusterIP [fd00::1]:80" "LoadBalancer [2001:db8::2]:80` + v6 + `"]`,
		}, problems...)
	}
	var cases []readCase
	for _, c := range []struct {
		name   string
		ranges []string
		want   []string
	}{
		{"none", nil, reading("", "")},
		{"only blanks", []string{"", " "}, reading("", "")},
		{"padded, with host bits", []string{" 10.1.2.3/8 ", "2001:db8:1::1/48"}, reading(" [10.0.0.0/8]", " [2001:db8:1::/48]")},
		{"sorted without overlap", []string{"192.0.2.0/24", "10.1.0.0/16", "10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"}, reading(" [10.0.0.0/8 192.0.2.0/24]", " [2001:db8::/32]")},
		{"all of one family allows that family alone", []string{"0.0.0.0/0", "10.0.0.0/8"}, reading("", " []")},
		{"all of both", []string{"0.0.0.0/0", "::/0"}, reading("", "")},
		{"only the other family denies this one", []string{"2001:db8::/32"}, reading(" []", " [2001:db8::/32]")},
		{"IPv4 in IPv6 form", []string{"::ffff:10.0.0.0/104"}, reading(" [10.0.0.0/8]", " []")},
		{"nonsense denies both", []string{"garbage"}, reading(" []", " []", `! spec.loadBalancerSourceRanges[0]: "garbage" is not in CIDR notation`)},
		{
			"usable ranges are used", []string{"10.0.0.0/8", "10.0.0.0/33", "x/8"},
			reading(" [10.0.0.0/8]", " []",
				`! spec.loadBalancerSourceRanges[1]: "10.0.0.0/33" has no valid prefix length`,
				`! spec.loadBalancerSourceRanges[2]: "x" is not an IP address`),
		},
	} {
		s := apiService("web", "", objects.ClusterIPs("10.96.0.1", "fd00::1"), objects.ExternalIPs("198.51.100.1"), objects.LoadBalancer("203.0.113.1", "2001:db8::2"), objects.SourceRanges(c.ranges...))
		cases = append(cases, readCase{c.name, s, c.want})
	}
	runReadCases(t, &TrackerOptions{}, cases)
}

// UpdateServiceCIDRs takes effect at once, and a change of the Node does not revert it.
func TestUpdateServiceCIDRs(t *testing.T) {
	tracker := NewServiceChangeTracker(TrackerOptions{NodeName: "here", ServiceCIDRs: prefixes("10.96.0.0/16")})
	tracker.Synced()
	next := func(after Snapshot, want ...string) Snapshot {
		t.Helper()
		s, err := tracker.Next(t.Context(), after)
		testenv.NoError(t, err)
		if got := s.Node().ServiceCIDRs; !slices.Equal(got, prefixes(want...)) {
			t.Errorf("service ranges: got %v, want %v", got, want)
		}
		return s
	}
	first := next(Snapshot{}, "10.96.0.0/16")
	tracker.UpdateServiceCIDRs(prefixes("fd00::/112", "10.97.0.0/16"))
	second := next(first, "10.97.0.0/16", "fd00::/112")
	tracker.UpdateNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{v1.LabelTopologyZone: "east"}}})
	third := next(second, "10.97.0.0/16", "fd00::/112")
	tracker.UpdateServiceCIDRs(prefixes("10.97.0.0/16", "fd00::/112"))
	if again := next(Snapshot{}, "10.97.0.0/16", "fd00::/112"); again.Generation() != third.Generation() {
		t.Errorf("the same ranges: got generation %d, want %d", again.Generation(), third.Generation())
	}
}

func annotations(all map[string]string) edit { return func(s *v1.Service) { s.Annotations = all } }

func listing(keys ...string) func(*TrackerOptions) {
	return func(o *TrackerOptions) { o.Annotations = keys }
}

func TestReadServiceAnnotations(t *testing.T) {
	web := func(all map[string]string) *v1.Service { return apiService("web", "10.96.0.1", annotations(all)) }
	long, plain := strings.Repeat("x", maxAnnotation), `http/TCP/IPv4 ["ClusterIP 10.96.0.1:80"]`
	runReadCases(t, &TrackerOptions{Annotations: []string{"scheduler", "preserve"}}, []readCase{
		{"none", web(nil), []string{"policy:", plain}},
		{"unlisted", web(map[string]string{"scheduler2": "a"}), []string{"policy:", plain}},
		{"empty value", web(map[string]string{"preserve": ""}), []string{"policy: annotations=map[preserve:]", plain}},
		{"listed and unlisted", web(map[string]string{"scheduler": "wrr", "x": "y"}), []string{"policy: annotations=map[scheduler:wrr]", plain}},
		{"longest", web(map[string]string{"scheduler": long}), []string{"policy: annotations=map[scheduler:" + long + "]", plain}},
		{
			"too long", web(map[string]string{"scheduler": long + "x", "preserve": "1"}),
			[]string{"policy: annotations=map[preserve:1]", plain, "! metadata.annotations[scheduler]: 4097 bytes are more than 4096: the annotation is ignored"},
		},
	})
}

// TestAnnotationsReachAllPorts: all ports of a Service have its annotations, in both
// families; later changes of the API object and of the options have no effect.
func TestAnnotationsReachAllPorts(t *testing.T) {
	keys, values := []string{"scheduler"}, map[string]string{"scheduler": "wrr"}
	tr := newTestTracker(listing(keys...))
	keys[0] = "x"
	tr.UpdateService(apiService("web", "10.96.0.1", objects.ClusterIPs("10.96.0.1", "fd00::1"), annotations(values),
		objects.Ports("http 80", "dns 53/UDP")))
	tr.UpdateService(apiService("other", "10.96.0.2"))
	values["scheduler"] = "y"
	s := newest(t, tr)
	count := 0
	for p := range s.All() {
		want := map[string]string{"scheduler": "wrr"}
		if p.Name.Name == "other" {
			want = nil
		}
		testenv.Same(t, want, p.Annotations, "%s", p.Name)
		count++
	}
	if count != 5 {
		t.Errorf("got %d ports, want 5", count)
	}
}

// TestAnnotationsThatChange changes annotations at random. A Service changes if one of the
// annotations that the options name changes, and for no other annotation.
func TestAnnotationsThatChange(t *testing.T) {
	random := testenv.Random(t)
	tr := newTestTracker(listing("a", "b"))
	objects := map[string]map[string]string{}
	carried := map[string]string{}
	last := newest(t, tr)
	for range 3000 {
		name := fmt.Sprint("web", random.IntN(4))
		now := maps.Clone(objects[name])
		if now == nil {
			now = map[string]string{}
		}
		for range 1 + random.IntN(2) {
			key := []string{"a", "b", "c", "d"}[random.IntN(4)]
			if now[key] = []string{"", "1", "2", strings.Repeat("x", maxAnnotation+1)}[random.IntN(4)]; random.IntN(3) == 0 {
				delete(now, key)
			}
		}
		objects[name] = now
		text := ""
		for _, key := range []string{"a", "b"} {
			if value, ok := now[key]; ok && len(value) <= maxAnnotation {
				text += fmt.Sprintf("%s=%q ", key, value)
			}
		}
		tr.UpdateService(apiService(name, "10.96.0."+name[3:], annotations(now)))
		s, want := newest(t, tr), map[string]string{}
		if old, known := carried[name]; !known || old != text {
			want[name] = text
		}
		carried[name] = text
		got := map[string]string{}
		for c := range s.Changes(last) {
			for _, key := range []string{"a", "b", "c", "d"} {
				if value, ok := c.New.Annotations[key]; ok {
					got[c.New.Name.Name] += fmt.Sprintf("%s=%q ", key, value)
				}
			}
			got[c.New.Name.Name] += ""
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s with annotations %q: changes (-want +got):\n%s", name, now, diff)
		}
		last = s
	}
}
