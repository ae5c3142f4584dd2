package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// specText formats a reading: the policies of the Service, then every port with its
// frontends, then the problems.
func specText(s *serviceSpec) []string {
	if s == nil {
		return nil
	}
	header := "policy:"
	if s.internalLocal {
		header += " internal-local"
	}
	if s.externalLocal {
		header += " external-local"
	}
	if s.affinity.Enabled() {
		header += fmt.Sprintf(" affinity=%v", s.affinity.Timeout)
	}
	if s.healthCheckNodePort != 0 {
		header += fmt.Sprintf(" health=%d", s.healthCheckNodePort)
	}
	if s.annotations != nil {
		header += fmt.Sprintf(" annotations=%v", s.annotations)
	}
	out := []string{header}
	for _, p := range s.ports {
		var list []Frontend
		for i := range p.count() {
			c := p.candidate(i)
			list = append(list, Frontend{Kind: c.kind, Addr: c.addr, Restricted: c.restricted, AllowedSources: c.sources})
		}
		out = append(out, fmt.Sprintf("%s/%s/%s %q", p.name.Port, p.name.Protocol, p.name.Family, frontendText(list)))
	}
	for _, p := range s.problems {
		out = append(out, fmt.Sprintf("! %s: %v", p.Field, p.Err))
	}
	return out
}

type readCase struct {
	name    string
	service *v1.Service
	want    []string
}

func runReadCases(t *testing.T, options *TrackerOptions, cases []readCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			before := tc.service.DeepCopy()
			got := readService(tc.service, options)
			testenv.Same(t, tc.want, specText(got), "reading")
			if diff := cmp.Diff(before, tc.service); diff != "" {
				t.Errorf("readService changed the object (-before +after):\n%s", diff)
			}
			if got != nil && !got.equal(readService(before, options)) {
				t.Error("two readings of one object: got different ones, want equal")
			}
		})
	}
}

func TestReadServiceSkipsWhatNeedsNoProxy(t *testing.T) {
	runReadCases(t, &TrackerOptions{}, []readCase{
		{"no ClusterIP yet", apiService("web", ""), nil},
		{"headless", apiService("web", v1.ClusterIPNone), nil},
		{"headless without ports", apiService("web", v1.ClusterIPNone, objects.Ports()), nil},
		{"external name", apiService("web", "", func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName }), nil},
		{"external name with ClusterIP", apiService("web", "10.96.0.1", func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName }), nil},
		{"empty object", &v1.Service{}, nil},
		{"no ports", apiService("web", "10.96.0.1", objects.Ports()), []string{"policy:"}},
	})
}

func TestReadServiceClusterIPs(t *testing.T) {
	v4 := `http/TCP/IPv4 ["ClusterIP 10.96.0.1:80"]`
	v6 := `http/TCP/IPv6 ["ClusterIP [fd00::1]:80"]`
	families := func(ips []string, families ...v1.IPFamily) edit {
		return func(s *v1.Service) { s.Spec.ClusterIPs, s.Spec.IPFamilies = ips, families }
	}
	onlyOld := func(s *v1.Service) { s.Spec.ClusterIPs = nil }
	runReadCases(t, &TrackerOptions{}, []readCase{
		{"old IPv4", apiService("web", "10.96.0.1", onlyOld), []string{"policy:", v4}},
		{"old IPv6", apiService("web", "fd00::1", onlyOld), []string{"policy:", v6}},
		{"single IPv4", apiService("web", "10.96.0.1", objects.ClusterIPs("10.96.0.1")), []string{"policy:", v4}},
		{"single IPv6", apiService("web", "fd00::1", objects.ClusterIPs("fd00::1")), []string{"policy:", v6}},
		{"IPv4 first", apiService("web", "", objects.ClusterIPs("10.96.0.1", "fd00::1")), []string{"policy:", v4, v6}},
		{"IPv6 first", apiService("web", "", objects.ClusterIPs("fd00::1", "10.96.0.1")), []string{"policy:", v4, v6}},
		{
			"family without address yet", apiService("web", "10.96.0.1", families([]string{"10.96.0.1"}, v1.IPv4Protocol, v1.IPv6Protocol)),
			[]string{"policy:", v4},
		},
		{
			"family and address disagree", apiService("web", "10.96.0.1", families([]string{"10.96.0.1", "10.96.0.2"}, v1.IPv4Protocol, v1.IPv6Protocol)),
			[]string{"policy:", v4, "! spec.clusterIPs[1]: 10.96.0.2 is not an IPv6 address"},
		},
		{"families without a list of addresses", apiService("web", "10.96.0.1", families(nil, v1.IPv4Protocol, v1.IPv6Protocol)), []string{"policy:", v4}},
		{
			"families without a list, and they disagree", apiService("web", "10.96.0.1", families(nil, v1.IPv6Protocol)),
			[]string{"policy:", "! spec.clusterIP: 10.96.0.1 is not an IPv6 address"},
		},
		{"leading zeros", apiService("web", "010.96.000.01"), []string{"policy:", v4}},
		{"IPv4 in IPv6 form", apiService("web", "::ffff:10.96.0.1"), []string{"policy:", v4}},
		{"old and bad", apiService("web", "nonsense"), []string{"policy:", `! spec.clusterIP: "nonsense" is not an IP address`}},
		{"broadcast", apiService("web", "255.255.255.255"), []string{"policy:", "! spec.clusterIP: 255.255.255.255 is the broadcast address"}},
		{"of 0.0.0.0/8", apiService("web", "0.0.0.1"), []string{"policy:", "! spec.clusterIP: 0.0.0.1 is an address of 0.0.0.0/8, which no host has"}},
		{"reserved, but used by some clouds", apiService("web", "240.0.0.1"), []string{"policy:", `http/TCP/IPv4 ["ClusterIP 240.0.0.1:80"]`}},
		{"old and loopback", apiService("web", "127.0.0.1"), []string{"policy:", "! spec.clusterIP: 127.0.0.1 is a loopback address"}},
		{
			"one family bad", apiService("web", "fd00::1", families([]string{"fd00::1", "10.96.0"}, v1.IPv6Protocol, v1.IPv4Protocol)),
			[]string{"policy:", v6, `! spec.clusterIPs[1]: "10.96.0" is not an IP address`},
		},
	})
}

func TestReadServicePorts(t *testing.T) {
	one := `http/TCP/IPv4 ["ClusterIP 10.96.0.1:80"]`
	runReadCases(t, &TrackerOptions{}, []readCase{
		{"unnamed", apiService("web", "10.96.0.1", objects.Ports("80")), []string{"policy:", `/TCP/IPv4 ["ClusterIP 10.96.0.1:80"]`}},
		{"no protocol is TCP", apiService("web", "10.96.0.1", objects.Ports("http 80/")), []string{"policy:", one}},
		{
			"one number, three protocols",
			apiService("dns", "10.96.0.1", objects.Ports("a 53/UDP", "b 53", "c 53/SCTP")),
			[]string{"policy:", `a/UDP/IPv4 ["ClusterIP 10.96.0.1:53"]`, `b/TCP/IPv4 ["ClusterIP 10.96.0.1:53"]`, `c/SCTP/IPv4 ["ClusterIP 10.96.0.1:53"]`},
		},
		{
			"unknown protocol", apiService("web", "10.96.0.1", objects.Ports("x 80/QUIC", "http 80")),
			[]string{"policy:", one, `! spec.ports[0].protocol: unknown protocol "QUIC"`},
		},
		{"port zero", apiService("web", "10.96.0.1", objects.Ports("http 0")), []string{"policy:", "! spec.ports[0].port: 0 is not a port number"}},
		{"port negative", apiService("web", "10.96.0.1", objects.Ports("http -1")), []string{"policy:", "! spec.ports[0].port: -1 is not a port number"}},
		{
			"port too large, reported once for both families",
			apiService("web", "", objects.ClusterIPs("10.96.0.1", "fd00::1"), objects.Ports("http 65536")),
			[]string{"policy:", "! spec.ports[0].port: 65536 is not a port number"},
		},
		{
			"largest numbers", apiService("web", "10.96.0.1", objects.Ports("http 65535:65535")),
			[]string{"policy:", `http/TCP/IPv4 ["ClusterIP 10.96.0.1:65535" "NodePort 0.0.0.0:65535"]`},
		},
		{"bad node port", apiService("web", "10.96.0.1", objects.Ports("http 80:70000")), []string{"policy:", one, "! spec.ports[0].nodePort: 70000 is not a port number"}},
		{
			"one name and protocol twice: the last is used",
			apiService("web", "", objects.ClusterIPs("10.96.0.1", "fd00::1"), objects.Ports("http 80", "http 81", "http 82/UDP")),
			[]string{
				"policy:", `http/TCP/IPv4 ["ClusterIP 10.96.0.1:81"]`, `http/UDP/IPv4 ["ClusterIP 10.96.0.1:82"]`,
				`http/TCP/IPv6 ["ClusterIP [fd00::1]:81"]`, `http/UDP/IPv6 ["ClusterIP [fd00::1]:82"]`,
				`! spec.ports[1]: duplicate port "http"/TCP: earlier entry ignored`,
			},
		},
		{
			"node port with any type",
			apiService("web", "", objects.ClusterIPs("10.96.0.1", "fd00::1"), objects.NodePort(30080)),
			[]string{"policy:", `http/TCP/IPv4 ["ClusterIP 10.96.0.1:80" "NodePort 0.0.0.0:30080"]`, `http/TCP/IPv6 ["ClusterIP [fd00::1]:80" "NodePort [::]:30080"]`},
		},
	})
}

func TestReadServicePolicies(t *testing.T) {
	plain := `http/TCP/IPv4 ["ClusterIP 10.96.0.1:80"]`
	affinity := func(kind v1.ServiceAffinity, c *v1.SessionAffinityConfig) edit {
		return func(s *v1.Service) { s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = kind, c }
	}
	timeout := func(seconds int32) *v1.SessionAffinityConfig {
		return &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	health := func(n int32) edit { return func(s *v1.Service) { s.Spec.HealthCheckNodePort = n } }
	kind := func(k v1.ServiceType) edit { return func(s *v1.Service) { s.Spec.Type = k } }
	runReadCases(t, &TrackerOptions{}, []readCase{
		{"internal Local", apiService("web", "10.96.0.1", objects.InternalLocal), []string{"policy: internal-local", plain}},
		{"internal Cluster", apiService("web", "10.96.0.1", func(s *v1.Service) { s.Spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicyCluster) }), []string{"policy:", plain}},
		{"external Local, nothing external", apiService("web", "10.96.0.1", objects.ExternalLocal), []string{"policy:", plain}},
		{"external Local, NodePort", apiService("web", "10.96.0.1", objects.ExternalLocal, kind(v1.ServiceTypeNodePort), health(30001)), []string{"policy: external-local", plain}},
		{
			"external Local, external IPs", apiService("web", "10.96.0.1", objects.ExternalLocal, objects.ExternalIPs("198.51.100.1"), health(30001)),
			[]string{"policy: external-local", `http/TCP/IPv4 ["ClusterIP 10.96.0.1:80" "ExternalIP 198.51.100.1:80"]`},
		},
		{"external Local, LoadBalancer", apiService("web", "10.96.0.1", objects.ExternalLocal, objects.LoadBalancer(), health(30001)), []string{"policy: external-local health=30001", plain}},
		{"external Cluster, LoadBalancer", apiService("web", "10.96.0.1", objects.LoadBalancer(), health(30001)), []string{"policy:", plain}},
		{
			"bad health port", apiService("web", "10.96.0.1", objects.ExternalLocal, objects.LoadBalancer(), health(-5)),
			[]string{"policy: external-local", plain, "! spec.healthCheckNodePort: -5 is not a port number"},
		},
		{"affinity None", apiService("web", "10.96.0.1", affinity(v1.ServiceAffinityNone, timeout(5))), []string{"policy:", plain}},
		{"affinity without config", apiService("web", "10.96.0.1", affinity(v1.ServiceAffinityClientIP, nil)), []string{"policy: affinity=3h0m0s", plain}},
		{"affinity with empty config", apiService("web", "10.96.0.1", affinity(v1.ServiceAffinityClientIP, &v1.SessionAffinityConfig{})), []string{"policy: affinity=3h0m0s", plain}},
		{"affinity with timeout", apiService("web", "10.96.0.1", affinity(v1.ServiceAffinityClientIP, timeout(60))), []string{"policy: affinity=1m0s", plain}},
		{
			"affinity with bad timeout", apiService("web", "10.96.0.1", affinity(v1.ServiceAffinityClientIP, timeout(-1))),
			[]string{"policy: affinity=3h0m0s", plain, "! spec.sessionAffinityConfig.clientIP.timeoutSeconds: -1s is not within 1s and 24h0m0s"},
		},
		{"affinity with empty client IP", apiService("web", "10.96.0.1", affinity(v1.ServiceAffinityClientIP, &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{}})), []string{"policy: affinity=3h0m0s", plain}},
		{"shortest affinity", apiService("web", "10.96.0.1", affinity(v1.ServiceAffinityClientIP, timeout(1))), []string{"policy: affinity=1s", plain}},
		{"longest affinity", apiService("web", "10.96.0.1", affinity(v1.ServiceAffinityClientIP, timeout(86_400))), []string{"policy: affinity=24h0m0s", plain}},
		{
			"affinity too long", apiService("web", "10.96.0.1", affinity(v1.ServiceAffinityClientIP, timeout(86_401))),
			[]string{"policy: affinity=24h0m0s", plain, "! spec.sessionAffinityConfig.clientIP.timeoutSeconds: 24h0m1s is not within 1s and 24h0m0s"},
		},
		{
			"affinity of zero", apiService("web", "10.96.0.1", affinity(v1.ServiceAffinityClientIP, timeout(0))),
			[]string{"policy: affinity=3h0m0s", plain, "! spec.sessionAffinityConfig.clientIP.timeoutSeconds: 0s is not within 1s and 24h0m0s"},
		},
		{"affinity unknown", apiService("web", "10.96.0.1", affinity("Cookie", nil)), []string{"policy:", plain, `! spec.sessionAffinity: unknown kind "Cookie"`}},
	})
}

// TestReadingsDiffer: readings differ if a field that concerns the proxy differs, and only
// then.
func TestReadingsDiffer(t *testing.T) {
	full := func(edits ...edit) *v1.Service {
		all := []edit{objects.LoadBalancer("203.0.113.1"), objects.ExternalIPs("198.51.100.1"), objects.SourceRanges("192.0.2.0/24"), objects.NodePort(30080)}
		return apiService("web", "10.96.0.1", append(all, edits...)...)
	}
	base := readService(full(), &TrackerOptions{})
	for _, tc := range []struct {
		name string
		edit edit
		same bool
	}{
		{"nothing", func(*v1.Service) {}, true},
		{"annotation", func(s *v1.Service) { s.Annotations = map[string]string{"a": "b"} }, true},
		{"label", func(s *v1.Service) { s.Labels = map[string]string{"a": "b"} }, true},
		{"resource version", func(s *v1.Service) { s.ResourceVersion = "7" }, true},
		{"selector", func(s *v1.Service) { s.Spec.Selector = map[string]string{"a": "b"} }, true},
		{"target port", func(s *v1.Service) { s.Spec.Ports[0].TargetPort.IntVal = 7 }, true},
		{"creation, another zone", func(s *v1.Service) { s.CreationTimestamp = metav1.Time{Time: time.Unix(1000, 0).UTC()} }, true},
		{"creation", objects.Created(1), false},
		{"namespace", func(s *v1.Service) { s.Namespace = "other" }, false},
		{"internal policy", objects.InternalLocal, false},
		{"external policy", objects.ExternalLocal, false},
		{"affinity", func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP }, false},
		{"port name", func(s *v1.Service) { s.Spec.Ports[0].Name = "web" }, false},
		{"port number", func(s *v1.Service) { s.Spec.Ports[0].Port = 81 }, false},
		{"protocol", func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP }, false},
		{"node port", objects.NodePort(30081), false},
		{"external IP", objects.ExternalIPs("198.51.100.2"), false},
		{"ranges", objects.SourceRanges("192.0.3.0/24"), false},
		{"ranges removed", objects.SourceRanges(), false},
		{"a problem", objects.ExternalIPs("198.51.100.1", "x"), false},
	} {
		if got := readService(full(tc.edit), &TrackerOptions{}).equal(base); got != tc.same {
			t.Errorf("%s: readings equal: got %v, want %v", tc.name, got, tc.same)
		}
	}
}

// TestReadingsDifferInLittle: readings with small differences are not equal.
func TestReadingsDifferInLittle(t *testing.T) {
	read := func(edits ...edit) *serviceSpec {
		return readService(apiService("web", "10.96.0.1", edits...), &TrackerOptions{})
	}
	health := func(n int32) edit { return func(s *v1.Service) { s.Spec.HealthCheckNodePort = n } }
	open := objects.LoadBalancer("203.0.113.1")
	for _, tc := range []struct {
		name string
		a, b *serviceSpec
	}{
		{"health check node port", read(open, objects.ExternalLocal, health(30001)), read(open, objects.ExternalLocal, health(30002))},
		{"no source ranges, and only of the other family", read(open), read(open, objects.SourceRanges("2001:db8::/32"))},
		{"kind of the address", read(open), read(objects.LoadBalancer(), objects.ExternalIPs("203.0.113.1"))},
	} {
		if tc.a.equal(tc.b) || tc.b.equal(tc.a) {
			t.Errorf("%s: got equal readings, want different ones:\n%q\n%q", tc.name, specText(tc.a), specText(tc.b))
		}
	}
}

// TestServiceIsBounded: the number of frontends of one Service is limited.
func TestServiceIsBounded(t *testing.T) {
	many := func(s *v1.Service) {
		s.Spec.Ports = nil
		for i := range 20_000 {
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(1 + i)})
		}
	}
	var addrs []string
	for i := range 2000 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{203, 0, byte(i / 250), byte(1 + i%250)}).String())
	}
	for _, tc := range []struct {
		name      string
		edits     []edit
		frontends int // at most
		fields    []string
	}{
		{"ports", []edit{many}, 20_000, nil},
		{"ports and one load balancer", []edit{many, objects.LoadBalancer("203.0.113.1")}, 40_000, nil},
		{"ports and three load balancers", []edit{many, objects.LoadBalancer("203.0.113.1", "203.0.113.2", "203.0.113.3")}, 60_000, []string{"spec.ports"}},
		{"external IPs", []edit{objects.ExternalIPs(addrs...)}, 1 + maxAddresses, []string{"spec.externalIPs"}},
		{"load balancers", []edit{objects.LoadBalancer(addrs...)}, 1 + maxAddresses, []string{"status.loadBalancer.ingress"}},
		{"ports and external IPs", []edit{many, objects.ExternalIPs(addrs...)}, 20_000 + maxFrontends, []string{"spec.externalIPs", "spec.ports"}},
		{"load balancers come first", []edit{many, objects.ExternalIPs(addrs[3:]...), objects.LoadBalancer(addrs[:2]...)}, 60_000, []string{"spec.externalIPs", "spec.ports"}},
	} {
		spec := readService(apiService("greedy", "10.96.0.1", tc.edits...), &TrackerOptions{})
		frontends := 0
		for i := range spec.ports {
			frontends += spec.ports[i].count()
		}
		if frontends > tc.frontends || frontends < tc.frontends-maxFrontends/5 {
			t.Errorf("%s: got %d frontends, want about and at most %d", tc.name, frontends, tc.frontends)
		}
		if len(spec.ports) != len(apiService("greedy", "10.96.0.1", tc.edits...).Spec.Ports) {
			t.Errorf("%s: got %d ports, want all", tc.name, len(spec.ports))
		}
		var fields []string
		for _, p := range spec.problems {
			fields = append(fields, p.Field)
		}
		if !slices.Equal(fields, tc.fields) {
			t.Errorf("%s: reported fields: got %q, want %q", tc.name, fields, tc.fields)
		}
	}
}
