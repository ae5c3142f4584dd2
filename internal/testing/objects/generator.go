package objects

import (
	"fmt"
	"math/rand/v2"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Generator makes random objects, which a seed repeats. Their addresses and ports depend on
// their names, so that Services with names of their own compete for external addresses alone.
type Generator struct {
	*rand.Rand
	// Unusual has one of so many fields hold what an API server would not accept, or what
	// it would write in another way; zero is for never.
	Unusual int
	// Scarce has few ClusterIPs, node ports and external addresses, for which Services
	// compete, and few endpoints.
	Scarce bool
	// Balanced makes most Services load balancers with a health check node port, and
	// most endpoints local ones of TCP.
	Balanced bool
	// Node is the name of the node on which most endpoints are.
	Node string
	// Annotations are the keys of annotations of Services.
	Annotations []string
}

// OneOf returns a random item of a list.
func OneOf[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// Chance is true once in so many times.
func (g *Generator) Chance(in int) bool { return g.IntN(in) == 0 }

// usually returns the ordinary value most of the time, and one of the unusual ones as
// g.Unusual says.
func usually[T any](g *Generator, ordinary T, unusual ...T) T {
	if g.Unusual > 0 && g.Chance(g.Unusual) {
		return OneOf(g.Rand, unusual...)
	}
	return ordinary
}

// often returns the first value most of the time if g.Balanced is set.
func often[T any](g *Generator, balanced T, list ...T) T {
	if g.Balanced && !g.Chance(6) {
		return balanced
	}
	return OneOf(g.Rand, list...)
}

// scarce returns one of the few values if g.Scarce is set, and otherwise a value.
func scarce[T any](g *Generator, value T, few ...T) T {
	if g.Scarce {
		return OneOf(g.Rand, few...)
	}
	return value
}

// Service makes a Service: the old one with a few changed fields, or a new one.
func (g *Generator) Service(name string, old *v1.Service) *v1.Service {
	fields := []func(*v1.Service){
		g.setType, g.setClusterIPs, g.setPorts, g.setPorts, g.setAffinity, g.setPolicies,
		g.setExternalIPs, g.setIngress, g.setSourceRanges, g.setLabels, g.setAnnotations,
	}
	s := &v1.Service{ObjectMeta: meta(name)}
	s.CreationTimestamp = metav1.Unix(1_767_225_600+g.Int64N(3), 0)
	if old != nil && !g.Chance(4) {
		s = old.DeepCopy()
		g.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		fields = fields[:1+g.IntN(2)]
	}
	for _, set := range fields {
		set(s)
	}
	return s
}

func (g *Generator) setType(s *v1.Service) {
	s.Spec.Type = usually(g, often(g, v1.ServiceTypeLoadBalancer, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer),
		v1.ServiceTypeExternalName, "")
	own := HealthCheckNodePort(s.Namespace, s.Name)
	s.Spec.HealthCheckNodePort = usually(g, often(g, own, 0, own), -1, 70000)
}

// HealthCheckNodePort returns the port of a Service; Services whose names begin with other letters
// have others.
func HealthCheckNodePort(namespace, name string) int32 {
	return 31000 + 10*int32(namespace[0]%2) + int32(name[0])
}

func (g *Generator) setClusterIPs(s *v1.Service) {
	v4 := fmt.Sprintf("10.96.%d.%d", s.Namespace[0]%2, s.Name[0])
	v6 := fmt.Sprintf("fd00:96::%x:%x", s.Namespace[0]%2+1, s.Name[0])
	v4 = scarce(g, v4, "10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4", "10.96.0.5", "10.96.0.6")
	v6 = scarce(g, v6, "fd00:96::1", "fd00:96::2", "fd00:96::3", "fd00:96::4", "fd00:96::5", "fd00:96::6")
	v4 = usually(g, v4, "10.96.7.7", "010.096.007.007", "::ffff:10.96.7.8", "garbage", "169.254.1.1", "0.1.2.3", "240.0.0.9", v6)
	v6 = usually(g, v6, "fd00:96::7", "FD00:0096:0::7", "fe80::1", "ff02::1", v4)
	spec := &s.Spec
	spec.IPFamilies, spec.ClusterIPs = nil, nil
	switch g.IntN(6) {
	case 0:
		spec.IPFamilies, spec.ClusterIPs = []v1.IPFamily{v1.IPv4Protocol}, []string{v4}
	case 1:
		spec.IPFamilies, spec.ClusterIPs = []v1.IPFamily{v1.IPv6Protocol}, []string{v6}
	case 2:
		spec.IPFamilies, spec.ClusterIPs = []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}, []string{v6, v4}
	case 3:
		// An object from before Kubernetes had dual-stack Services.
		spec.ClusterIPs = []string{OneOf(g.Rand, v4, v6)}
	default:
		spec.IPFamilies, spec.ClusterIPs = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, []string{v4, v6}
	}
	spec.ClusterIPs = usually(g, spec.ClusterIPs, spec.ClusterIPs[:1], []string{"None"}, []string{""})
	spec.ClusterIP = usually(g, spec.ClusterIPs[0], "", "None", "garbage", v6)
	if len(spec.IPFamilies) == 0 {
		spec.ClusterIPs = nil
	}
}

func (g *Generator) protocol() v1.Protocol {
	return usually(g, often(g, v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP), "", "HTTP")
}

func (g *Generator) setPorts(s *v1.Service) {
	s.Spec.Ports = nil
	for i := range usually(g, 1+g.IntN(3), 0) {
		p := v1.ServicePort{
			Name: usually(g, [...]string{"web", "dns", "more"}[i], "web", ""), Protocol: g.protocol(),
			Port: usually(g, scarce(g, [...]int32{80, 53, 443}[i], 80, 81), 80, 0, -1, 65536, 70000),
		}
		if s.Spec.Type != v1.ServiceTypeClusterIP || g.Chance(8) {
			own := 30000 + 100*int32(s.Namespace[0]%2) + 10*int32(s.Name[0]%10) + int32(i)
			p.NodePort = usually(g, scarce(g, own, 0, 30080, 30081), 30000, 0, -1, 70000)
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
}

func (g *Generator) setAffinity(s *v1.Service) {
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = v1.ServiceAffinityNone, nil
	if g.Chance(3) {
		seconds := usually(g, OneOf(g.Rand, int32(10), 10800, 86400), 0, -5, 90000)
		s.Spec.SessionAffinity = usually(g, v1.ServiceAffinityClientIP, "Cookie", "")
		s.Spec.SessionAffinityConfig = usually(g, &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}},
			nil, &v1.SessionAffinityConfig{}, &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{}})
	}
}

func (g *Generator) setPolicies(s *v1.Service) {
	s.Spec.ExternalTrafficPolicy = often(g, v1.ServiceExternalTrafficPolicyLocal, v1.ServiceExternalTrafficPolicyLocal, v1.ServiceExternalTrafficPolicyCluster, "")
	s.Spec.InternalTrafficPolicy = OneOf(g.Rand, nil, nil, new(v1.ServiceInternalTrafficPolicyLocal), new(v1.ServiceInternalTrafficPolicyCluster))
}

// externalAddress returns an address; several Services may have the same.
func (g *Generator) externalAddress() string {
	n := scarce(g, 40, 4)
	v4, v6 := fmt.Sprintf("203.0.113.%d", g.IntN(n)), fmt.Sprintf("2001:db8:1::%x", g.IntN(n))
	return usually(g, scarce(g, OneOf(g.Rand, v4, v6), v4, v4, v6, "10.96.0.1", "10.96.0.2", "10.96.0.3"),
		"", " ", "203.000.113.001", " 203.0.113.1", "garbage", "127.0.0.1", "0.0.0.0", "224.0.0.1", "0.0.0.1", "240.0.0.1", "255.255.255.255",
		"fe80::7", "::ffff:203.0.113.2", "10.96.0.97", "fd00:96::1:61", "10.96.0.98")
}

func (g *Generator) setExternalIPs(s *v1.Service) {
	s.Spec.ExternalIPs = nil
	for range OneOf(g.Rand, 0, 0, 1, 2, scarce(g, 3, 5)) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, g.externalAddress())
	}
}

func (g *Generator) setIngress(s *v1.Service) {
	s.Status.LoadBalancer.Ingress = nil
	for range OneOf(g.Rand, 0, 0, 1, scarce(g, 2, 3)) {
		in := v1.LoadBalancerIngress{IP: g.externalAddress()}
		if g.Chance(4) {
			in.IPMode = OneOf(g.Rand, new(v1.LoadBalancerIPModeVIP), new(v1.LoadBalancerIPModeProxy), new(v1.LoadBalancerIPMode("Other")))
		}
		if g.Chance(8) {
			in.IP, in.Hostname = "", "example.org"
		}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, in)
	}
}

func (g *Generator) setSourceRanges(s *v1.Service) {
	s.Spec.LoadBalancerSourceRanges = nil
	for range OneOf(g.Rand, 0, 0, 1, 2) {
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, usually(g,
			OneOf(g.Rand, "198.51.100.0/24", "192.0.2.0/24", "10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0", "::/0"),
			"", " 10.1.2.3/8 ", "garbage", "10.0.0.0", "10.0.0.0/33", "010.0.0.0/8", "::ffff:10.0.0.0/104", "198.51.100.7/32"))
	}
}

func (g *Generator) setLabels(s *v1.Service) {
	s.DeletionTimestamp = usually(g, nil, &s.CreationTimestamp)
	s.Labels = usually(g, nil, map[string]string{"service.kubernetes.io/service-proxy-name": OneOf(g.Rand, "", "other")},
		map[string]string{v1.IsHeadlessService: ""})
}

func (g *Generator) setAnnotations(s *v1.Service) {
	s.Annotations = nil
	for _, key := range g.Annotations {
		if g.Chance(2) {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, key, usually(g, OneOf(g.Rand, "", "a", "b"), strings.Repeat("x", 5000)))
		}
	}
}

// Slice makes an EndpointSlice in the same way, of one of the Services a, b and c.
func (g *Generator) Slice(name string, old *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	fields := []func(*discoveryv1.EndpointSlice){g.setOwner, g.setSlicePorts, g.setEndpoints}
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta(name)}
	if old != nil {
		s = old.DeepCopy()
		fields = OneOf(g.Rand, [][]func(*discoveryv1.EndpointSlice){
			{g.setSlicePorts}, {g.setEndpoints}, {g.setEndpoints}, {g.changeEndpoint}, {g.changeEndpoint}, {annotate},
			usually(g, []func(*discoveryv1.EndpointSlice){g.changeEndpoint}, []func(*discoveryv1.EndpointSlice){g.setOwner, g.setEndpoints}),
		}...)
	}
	for _, set := range fields {
		set(s)
	}
	return s
}

func annotate(s *discoveryv1.EndpointSlice) {
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, "changed", s.Annotations["changed"]+".")
}

func (g *Generator) setOwner(s *discoveryv1.EndpointSlice) {
	s.AddressType = usually(g, OneOf(g.Rand, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6), discoveryv1.AddressTypeFQDN)
	s.DeletionTimestamp = usually(g, nil, &metav1.Time{Time: s.CreationTimestamp.Time})
	s.Labels = usually(g, map[string]string{discoveryv1.LabelServiceName: OneOf(g.Rand, "a", "b", "c")},
		nil, map[string]string{discoveryv1.LabelServiceName: ""})
}

func (g *Generator) setSlicePorts(s *discoveryv1.EndpointSlice) {
	s.Ports = nil
	for i := range usually(g, 1+g.IntN(3), 0) {
		name, port := usually(g, [...]string{"web", "dns", "more"}[i], "", "web"), usually(g, int32(8080+g.IntN(2)), 0, -1, 70000)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{
			Name: usually(g, &name, nil), Port: usually(g, &port, nil), Protocol: usually(g, new(g.protocol()), nil),
		})
	}
}

func (g *Generator) setEndpoints(s *discoveryv1.EndpointSlice) {
	s.Endpoints = make([]discoveryv1.Endpoint, g.IntN(6))
	hints := g.Chance(2)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.Addresses = g.endpointAddresses(s.AddressType)
		g.setNode(e)
		g.setConditions(e)
		if hints && !g.Chance(12) {
			g.setHints(e)
		}
	}
}

func (g *Generator) endpointAddresses(kind discoveryv1.AddressType) []string {
	n := scarce(g, 30, 4)
	v4, v6 := fmt.Sprintf("10.244.0.%d", g.IntN(n)), fmt.Sprintf("fd00:244::%x", 1+g.IntN(n))
	if kind == discoveryv1.AddressTypeIPv6 {
		v4, v6 = v6, v4
	}
	return usually(g, []string{v4}, nil, []string{"garbage"}, []string{v6}, []string{v4, "10.244.9.9"}, []string{"127.0.0.1"},
		[]string{"010.244.000.007"}, []string{"::ffff:10.244.0.7"}, []string{"fe80::1"}, []string{""}, []string{"FD00:0244::0007"}, []string{"fe80::1%eth0"}, []string{" 10.244.0.7"})
}

func (g *Generator) setNode(e *discoveryv1.Endpoint) {
	name := often(g, g.Node, g.Node, "there", "elsewhere", "")
	e.NodeName = OneOf(g.Rand, &name, &name, nil)
}

func (g *Generator) setConditions(e *discoveryv1.Endpoint) {
	some := func() *bool { return OneOf(g.Rand, nil, new(true), new(false)) }
	switch g.IntN(5) {
	case 0, 1:
		e.Conditions = Endpoint("10.0.0.1 R").Conditions
	case 2:
		e.Conditions = Endpoint("10.0.0.1 T").Conditions
	case 3:
		e.Conditions = discoveryv1.EndpointConditions{}
	default:
		e.Conditions = discoveryv1.EndpointConditions{Ready: some(), Serving: some(), Terminating: some()}
	}
}

func (g *Generator) setHints(e *discoveryv1.Endpoint) {
	e.Hints = &discoveryv1.EndpointHints{}
	for range OneOf(g.Rand, 0, 1, 1, 2) {
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: usually(g, OneOf(g.Rand, "a", "a", "b", "c"), "")})
	}
	for range OneOf(g.Rand, 0, 0, 1, 2) {
		e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: usually(g, OneOf(g.Rand, g.Node, "there"), "")})
	}
}

// changeEndpoint changes one endpoint, the most frequent change in a cluster.
func (g *Generator) changeEndpoint(s *discoveryv1.EndpointSlice) {
	if len(s.Endpoints) == 0 {
		g.setEndpoints(s)
		return
	}
	e := &s.Endpoints[g.IntN(len(s.Endpoints))]
	OneOf(g.Rand, g.setNode, g.setConditions, g.setConditions, g.setHints)(e)
}

// RandomNode makes the Node in a zone or without one, perhaps without an address of a family.
func (g *Generator) RandomNode() *v1.Node {
	n := Node(g.Node, OneOf(g.Rand, "", "a", "a", "b"))
	if g.Chance(5) { // The former name of the label, or an empty zone.
		n.Labels = map[string]string{OneOf(g.Rand, v1.LabelFailureDomainBetaZone, v1.LabelTopologyZone): OneOf(g.Rand, "a", "")}
	}
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		if !g.Chance(4) {
			n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{
				Type: usually(g, v1.NodeInternalIP, v1.NodeExternalIP, v1.NodeHostName), Address: usually(g, a, "192.0.2.2", "bad"),
			})
		}
	}
	if g.Unusual > 0 && g.Chance(2) {
		n.Spec.PodCIDRs = []string{usually(g, "10.244.0.0/24", "10.244.1.0/24", "bad")}
	}
	return n
}
