package endpoints

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// fields returns the field errors of an error as text, "field: reason" each.
func fields(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("got error %v (%T), want joined errors", err, err)
	}
	var out []string
	for _, e := range joined.Unwrap() {
		f, ok := errors.AsType[*FieldError](e)
		if !ok {
			t.Fatalf("got error %v (%T), want a FieldError", e, e)
		}
		if e.Error() != f.Field+": "+f.Err.Error() || !errors.Is(e, f.Err) {
			t.Errorf("FieldError: got text %v, want field and reason", e)
		}
		out = append(out, e.Error())
	}
	return out
}

type readCase struct {
	name   string
	change func(*discoveryv1.EndpointSlice)
	want   map[string][]string
	// wrong are the field errors, in order: the field, and a part of the reason.
	wrong []string
}

const (
	httpPort  = "ns/web:http/TCP/IPv4"
	httpsPort = "ns/web:https/TCP/IPv4"
)

// runReadCases reads changed copies of a slice with one endpoint.
func runReadCases(t *testing.T, cases []readCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			s := objects.Edited(apiSlice("s", "web", "10.0.0.1"), tc.change)
			object := s.DeepCopy()
			c := NewCache(View{NodeName: "here", Zone: "a"}, nil)
			got := fields(t, c.Update(s))
			for i, w := range tc.wrong {
				field, reason, _ := strings.Cut(w, ": ")
				if i >= len(got) || !strings.HasPrefix(got[i], field+": ") || !strings.Contains(got[i], reason) {
					t.Errorf("errors: got %q, want %q", got, tc.wrong)
					break
				}
			}
			if len(got) != len(tc.wrong) {
				t.Errorf("errors: got %q, want %q", got, tc.wrong)
			}
			if tc.want == nil {
				tc.want = map[string][]string{}
			}
			testenv.Same(t, tc.want, contents(c), "contents")
			if diff := cmp.Diff(object, s); diff != "" {
				t.Errorf("object (-before +after):\n%s", diff)
			}
			checkCache(t, c)
		})
	}
}

func TestUpdateReadsSlice(t *testing.T) {
	type es = discoveryv1.EndpointSlice
	one := map[string][]string{httpPort: {"10.0.0.1:80 R"}}
	runReadCases(t, []readCase{
		{"plain", func(*es) {}, one, nil},
		{"other labels and annotations", func(s *es) {
			s.Labels["endpointslice.kubernetes.io/managed-by"] = "someone"
			s.Annotations = map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": "nonsense"}
		}, one, nil},
		{"no labels", func(s *es) { s.Labels = nil }, nil, nil},
		{"empty service name", func(s *es) { s.Labels[discoveryv1.LabelServiceName] = "" }, nil, nil},
		{"no name", func(s *es) { s.Name = "" }, nil, []string{"metadata.name: required"}},
		{"no namespace", func(s *es) { s.Namespace = "" }, nil, []string{"metadata.namespace: required"}},
		{"domain names", func(s *es) { s.AddressType = discoveryv1.AddressTypeFQDN }, nil, []string{`addressType: "FQDN"`}},
		{"no address type", func(s *es) { s.AddressType = "" }, nil, []string{`addressType: ""`}},
		{"domain names without a Service", func(s *es) { s.Labels, s.AddressType = nil, discoveryv1.AddressTypeFQDN }, nil, nil},
		{"no endpoints", func(s *es) { s.Endpoints = nil }, nil, nil},
		{"no ports", func(s *es) { s.Ports = nil }, nil, nil},
		{"nothing", func(s *es) { *s = es{} }, nil, []string{"metadata.name: required"}},
	})
}

func TestUpdateReadsPorts(t *testing.T) {
	type es = discoveryv1.EndpointSlice
	port := func(change func(*discoveryv1.EndpointPort)) func(*es) {
		return func(s *es) {
			s.Ports = append(s.Ports, objects.SlicePorts("https 443")...)
			change(&s.Ports[0])
		}
	}
	https := []string{"10.0.0.1:443 R"}
	onlyHTTPS := map[string][]string{httpsPort: https}
	runReadCases(t, []readCase{
		{"two", port(func(*discoveryv1.EndpointPort) {}), map[string][]string{httpPort: {"10.0.0.1:80 R"}, httpsPort: https}, nil},
		{"no name", port(func(p *discoveryv1.EndpointPort) { p.Name = nil }),
			map[string][]string{"ns/web:/TCP/IPv4": {"10.0.0.1:80 R"}, httpsPort: https}, nil},
		{"no protocol", port(func(p *discoveryv1.EndpointPort) { p.Protocol = nil }),
			map[string][]string{httpPort: {"10.0.0.1:80 R"}, httpsPort: https}, nil},
		{"empty protocol", port(func(p *discoveryv1.EndpointPort) { p.Protocol = new(v1.Protocol("")) }),
			map[string][]string{httpPort: {"10.0.0.1:80 R"}, httpsPort: https}, nil},
		{"UDP", port(func(p *discoveryv1.EndpointPort) { p.Protocol = new(v1.ProtocolUDP) }),
			map[string][]string{"ns/web:http/UDP/IPv4": {"10.0.0.1:80 R"}, httpsPort: https}, nil},
		{"SCTP", port(func(p *discoveryv1.EndpointPort) { p.Protocol = new(v1.ProtocolSCTP) }),
			map[string][]string{"ns/web:http/SCTP/IPv4": {"10.0.0.1:80 R"}, httpsPort: https}, nil},
		{"unknown protocol", port(func(p *discoveryv1.EndpointPort) { p.Protocol = new(v1.Protocol("tcp")) }),
			onlyHTTPS, []string{`ports[0].protocol: "tcp"`}},
		{"no number", port(func(p *discoveryv1.EndpointPort) { p.Port = nil }), onlyHTTPS, []string{"ports[0].port: no port number"}},
		{"zero", port(func(p *discoveryv1.EndpointPort) { p.Port = new(int32(0)) }), onlyHTTPS, []string{"ports[0].port: 0 is not"}},
		{"negative", port(func(p *discoveryv1.EndpointPort) { p.Port = new(int32(-80)) }), onlyHTTPS, []string{"ports[0].port: -80 is not"}},
		{"too high", port(func(p *discoveryv1.EndpointPort) { p.Port = new(int32(65536)) }), onlyHTTPS, []string{"ports[0].port: 65536 is not"}},
		{"highest", port(func(p *discoveryv1.EndpointPort) { p.Port = new(int32(65535)) }),
			map[string][]string{httpPort: {"10.0.0.1:65535 R"}, httpsPort: https}, nil},
		{"one name, two protocols", port(func(p *discoveryv1.EndpointPort) { *p = objects.SlicePorts("https 443/UDP")[0] }),
			map[string][]string{"ns/web:https/UDP/IPv4": https, httpsPort: https}, nil},
		{"the same twice", port(func(p *discoveryv1.EndpointPort) { *p = objects.SlicePorts("https 443")[0] }), onlyHTTPS, nil},
		{"one name, two numbers", port(func(p *discoveryv1.EndpointPort) { *p = objects.SlicePorts("https 8443")[0] }),
			map[string][]string{httpsPort: {"10.0.0.1:443 R", "10.0.0.1:8443 R"}}, nil},
	})
}

func TestUpdateReadsEndpoints(t *testing.T) {
	type es = discoveryv1.EndpointSlice
	endpoints := func(specs ...string) func(*es) {
		return func(s *es) { s.Endpoints = apiSlice("", "", specs...).Endpoints }
	}
	v6 := func(specs ...string) func(*es) {
		return func(s *es) {
			s.AddressType = discoveryv1.AddressTypeIPv6
			endpoints(specs...)(s)
		}
	}
	list := func(want ...string) map[string][]string { return map[string][]string{httpPort: want} }
	runReadCases(t, []readCase{
		{"sorted by number", endpoints("10.0.0.10", "10.0.0.9", "9.255.0.1"),
			list("9.255.0.1:80 R", "10.0.0.9:80 R", "10.0.0.10:80 R"), nil},
		{"conditions", endpoints("10.0.0.1 R", "10.0.0.2 U", "10.0.0.3 T", "10.0.0.4 X", "10.0.0.5 P", "10.0.0.6 N", "10.0.0.7 S", "10.0.0.8 Q"),
			list("10.0.0.1:80 R", "10.0.0.2:80 U", "10.0.0.3:80 T", "10.0.0.4:80 X", "10.0.0.5:80 P", "10.0.0.6:80 N", "10.0.0.7:80 S", "10.0.0.8:80 Q"), nil},
		{"only ready is set", func(s *es) { s.Endpoints[0].Conditions.Ready = new(false) }, list("10.0.0.1:80 S"), nil},
		{"only terminating is set", func(s *es) { s.Endpoints[0].Conditions.Terminating = new(true) }, list("10.0.0.1:80 P"), nil},
		{"nodes", endpoints("10.0.0.1 R @here", "10.0.0.2 R @there", "10.0.0.3 R"),
			list("10.0.0.1:80 R @here local", "10.0.0.2:80 R @there", "10.0.0.3:80 R"), nil},
		{"empty node name", func(s *es) { s.Endpoints[0].NodeName = new("") }, list("10.0.0.1:80 R"), nil},
		{"hints", endpoints("10.0.0.1 R zones=a", "10.0.0.2 R zones=b,c", "10.0.0.3 R zones=c,a nodes=there,here", "10.0.0.4 R nodes=there"),
			list("10.0.0.1:80 R zone+", "10.0.0.2:80 R zone-", "10.0.0.3:80 R zone+ node+", "10.0.0.4:80 R node-"), nil},
		{"empty hints", func(s *es) { s.Endpoints[0].Hints = &discoveryv1.EndpointHints{} }, list("10.0.0.1:80 R"), nil},
		{"hints with impossible names", endpoints("10.0.0.1 R zones= nodes=", "10.0.0.2 R zones=\x00a"),
			list("10.0.0.1:80 R zone- node-", "10.0.0.2:80 R zone-"), nil},
		{"only the first address is used", func(s *es) { s.Endpoints[0].Addresses = []string{"10.0.0.7", "10.0.0.8", "nonsense"} },
			list("10.0.0.7:80 R"), nil},
		{"no address", func(s *es) { s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{}) },
			list("10.0.0.1:80 R"), []string{"endpoints[1].addresses: no address"}},
		{"bad addresses", endpoints("nonsense", "10.0.0.1", "127.0.0.1", "2001:db8::1"),
			list("10.0.0.1:80 R"), []string{"endpoints[0].addresses[0]: not an IP", "endpoints[2].addresses[0]: loopback", "endpoints[3].addresses[0]: not an IPv4"}},
		{"leading zeros", endpoints("010.0.0.01"), list("10.0.0.1:80 R"), nil},
		{"IPv6", v6("2001:db8::2", "2001:db8::1", "10.0.0.1", "::ffff:10.0.0.1"),
			map[string][]string{"ns/web:http/TCP/IPv6": {"[2001:db8::1]:80 R", "[2001:db8::2]:80 R"}},
			[]string{"endpoints[2].addresses[0]: not an IPv6", "endpoints[3].addresses[0]: not an IPv6"}},
		{"the same address again", endpoints("10.0.0.1 U", "10.0.0.1 R @there", "10.0.0.1 T", "10.0.0.1 R @here"),
			list("10.0.0.1:80 R @here local"), nil},
		{"the same record again", endpoints("10.0.0.1 R", "10.0.0.1 R"), list("10.0.0.1:80 R"), nil},
		{"no valid endpoint", endpoints("nonsense"), nil, []string{"endpoints[0].addresses[0]: not an IP"}},
	})
}

// TestSliceIsBounded: a small object must not use gigabytes, although each port has all
// endpoints.
func TestSliceIsBounded(t *testing.T) {
	s := apiSlice("web-1", "web", "10.0.0.1")
	for i := range 1000 {
		s.Endpoints = append(s.Endpoints, objects.Endpoint(fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)))
	}
	s.Ports = nil
	for i := range 20_000 {
		s.Ports = append(s.Ports, objects.SlicePorts(fmt.Sprintf("p%d 8080", i))...)
	}
	c := NewCache(View{}, nil)
	if err := c.Update(s); err == nil || !strings.Contains(err.Error(), "20000 ports are more than 2000000") {
		t.Errorf("Update of a slice of 20000 ports and 1001 endpoints: got error %v, want one with these numbers", err)
	}
	records := 0
	for _, p := range c.ports {
		records += len(p.endpoints())
	}
	if records < maxRecords-1001 || records > maxRecords {
		t.Errorf("got %d endpoints at all ports, want nearly and at most %d", records, maxRecords)
	}

	// A slice that Kubernetes makes is used whole.
	s.Endpoints = s.Endpoints[:100]
	if err := c.Update(s); err != nil || len(c.ports) != 20_000 {
		t.Errorf("20000 ports and 100 endpoints: got %d ports and error %v, want all and none", len(c.ports), err)
	}
}

// TestPortsShareEndpoints: ports with one number have one list, before and after a change; ports
// with different numbers do not.
func TestPortsShareEndpoints(t *testing.T) {
	s := apiSlice("web-1", "web", "10.0.0.1", "10.0.0.2", "10.0.0.3")
	s.Ports = nil
	for i := range 100 {
		s.Ports = append(s.Ports, objects.SlicePorts(fmt.Sprintf("p%02d %d", i, 8080+i/50))...)
	}
	c := NewCache(View{}, nil)
	check := func() {
		t.Helper()
		testenv.NoError(t, c.Update(s))
		distinct := map[*Endpoint]int{}
		for _, p := range c.ports {
			distinct[p.endpoints()[0]]++
		}
		if len(distinct) != 2 {
			t.Errorf("got %d first endpoints of 100 ports with two numbers, want 2", len(distinct))
		}
		checkCache(t, c)
	}
	check()
	s.Endpoints = s.Endpoints[1:]
	check()
	s.Endpoints = append(s.Endpoints, objects.Endpoint("10.0.0.4"))
	check()
}
