package differential

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// portNames returns all ports that a slice can have.
func portNames() []proxy.ServicePortName {
	var all []proxy.ServicePortName
	for i := range 2 * 3 * 4 * 3 * 2 {
		all = append(all, proxy.ServicePortName{
			NamespacedName: types.NamespacedName{Namespace: [...]string{"north", "south"}[i%2], Name: [...]string{"a", "b", "c"}[i/2%3]},
			Port:           [...]string{"web", "dns", "more", ""}[i/6%4],
			Protocol:       [...]v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}[i/24%3],
			Family:         families()[i/72%2],
		})
	}
	return all
}

// newService makes a Service: the old one with a few changed fields, or a new one.
func (g *generator) newService(name types.NamespacedName, old *v1.Service) *v1.Service {
	fields := []func(*v1.Service){
		g.setType, g.setClusterIPs, g.setPorts, g.setPorts, g.setAffinity,
		g.setPolicies, g.setExternalIPs, g.setIngress, g.setSourceRanges, g.setLabels,
	}
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, CreationTimestamp: g.age()}}
	if old != nil && !g.chance(4) {
		s = old.DeepCopy()
		g.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		fields = fields[:1+g.IntN(2)]
	}
	for _, set := range fields {
		set(s)
	}
	return s
}

func (g *generator) setType(s *v1.Service) {
	s.Spec.Type = usually(g, oftenIfBalanced(g, v1.ServiceTypeLoadBalancer, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer),
		v1.ServiceTypeExternalName, "")
	s.Spec.HealthCheckNodePort = usually(g, oftenIfBalanced(g, healthCheckNodePort(s.Namespace, s.Name), 0, healthCheckNodePort(s.Namespace, s.Name)), -1, 70000)
}

// healthCheckNodePort returns the port of a Service; no two Services have the same.
func healthCheckNodePort(namespace, name string) int32 {
	return 31000 + 10*int32(namespace[0]%2) + int32(name[0])
}

func (g *generator) setClusterIPs(s *v1.Service) {
	v4 := fmt.Sprintf("10.96.%d.%d", s.Namespace[0]%2, s.Name[0])
	v6 := fmt.Sprintf("fd00:96::%x:%x", s.Namespace[0]%2+1, s.Name[0])
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
		spec.ClusterIPs = []string{oneOf(g, v4, v6)}
	default:
		spec.IPFamilies, spec.ClusterIPs = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, []string{v4, v6}
	}
	spec.ClusterIPs = usually(g, spec.ClusterIPs, spec.ClusterIPs[:1], []string{"None"}, []string{""})
	spec.ClusterIP = usually(g, spec.ClusterIPs[0], "", "None", "garbage", v6)
	if len(spec.IPFamilies) == 0 {
		spec.ClusterIPs = nil
	}
}

func (g *generator) setPorts(s *v1.Service) {
	s.Spec.Ports = nil
	for i := range usually(g, 1+g.IntN(3), 0) {
		p := v1.ServicePort{
			Name:     usually(g, [...]string{"web", "dns", "more"}[i], "web", ""),
			Protocol: usually(g, oftenIfBalanced(g, v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP), "", "HTTP"),
			Port:     usually(g, [...]int32{80, 53, 443}[i], 80, 0, -1, 70000),
		}
		if s.Spec.Type != v1.ServiceTypeClusterIP || g.chance(8) {
			p.NodePort = usually(g, 30000+100*int32(s.Namespace[0]%2)+10*int32(s.Name[0]%10)+int32(i), 30000, 0, -1, 70000)
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
}

func (g *generator) setAffinity(s *v1.Service) {
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = v1.ServiceAffinityNone, nil
	if g.chance(3) {
		seconds := usually(g, oneOf(g, int32(10), 10800, 86400), 0, -5, 90000)
		s.Spec.SessionAffinity = usually(g, v1.ServiceAffinityClientIP, "Cookie", "")
		s.Spec.SessionAffinityConfig = usually(g, &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}},
			nil, &v1.SessionAffinityConfig{}, &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{}})
	}
}

func (g *generator) setPolicies(s *v1.Service) {
	s.Spec.ExternalTrafficPolicy = oftenIfBalanced(g, v1.ServiceExternalTrafficPolicyLocal, v1.ServiceExternalTrafficPolicyLocal, v1.ServiceExternalTrafficPolicyCluster, "")
	s.Spec.InternalTrafficPolicy = nil
	if g.chance(2) {
		policy := oneOf(g, v1.ServiceInternalTrafficPolicyLocal, v1.ServiceInternalTrafficPolicyCluster)
		s.Spec.InternalTrafficPolicy = &policy
	}
}

// externalAddress returns an address; several Services may have the same.
func (g *generator) externalAddress() string {
	v4, v6 := fmt.Sprintf("203.0.113.%d", g.IntN(40)), fmt.Sprintf("2001:db8:1::%x", g.IntN(40))
	return usually(g, oneOf(g, v4, v6), "", " ", "203.000.113.001", " 203.0.113.1", "garbage", "127.0.0.1", "0.0.0.0", "224.0.0.1",
		"0.0.0.1", "240.0.0.1", "255.255.255.255",
		"fe80::7", "::ffff:203.0.113.2", "10.96.0.97", "fd00:96::1:61", "10.96.0.98")
}

func (g *generator) setExternalIPs(s *v1.Service) {
	s.Spec.ExternalIPs = nil
	for range oneOf(g, 0, 0, 1, 2, 3) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, g.externalAddress())
	}
}

func (g *generator) setIngress(s *v1.Service) {
	s.Status.LoadBalancer.Ingress = nil
	for range oneOf(g, 0, 0, 1, 2) {
		in := v1.LoadBalancerIngress{IP: g.externalAddress()}
		if g.chance(4) {
			mode := oneOf(g, v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy, "Other")
			in.IPMode = &mode
		}
		if g.chance(8) {
			in.IP, in.Hostname = "", "example.org"
		}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, in)
	}
}

func (g *generator) setSourceRanges(s *v1.Service) {
	s.Spec.LoadBalancerSourceRanges = nil
	for range oneOf(g, 0, 0, 1, 2) {
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, usually(g,
			oneOf(g, "198.51.100.0/24", "192.0.2.0/24", "10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0", "::/0"),
			"", " 10.1.2.3/8 ", "garbage", "10.0.0.0", "10.0.0.0/33", "010.0.0.0/8", "::ffff:10.0.0.0/104", "198.51.100.7/32"))
	}
}

func (g *generator) setLabels(s *v1.Service) {
	s.DeletionTimestamp = usually(g, nil, &metav1.Time{Time: s.CreationTimestamp.Time})
	s.Labels = usually(g, nil, map[string]string{"service.kubernetes.io/service-proxy-name": oneOf(g, "", "other")},
		map[string]string{v1.IsHeadlessService: ""})
}

// newSlice makes an EndpointSlice in the same way.
func (g *generator) newSlice(name types.NamespacedName, old *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	fields := []func(*discoveryv1.EndpointSlice){g.setOwner, g.setSlicePorts, g.setEndpoints}
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	if old != nil {
		s = old.DeepCopy()
		fields = oneOf(g, [][]func(*discoveryv1.EndpointSlice){
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
	s.Annotations = map[string]string{"changed": s.Annotations["changed"] + "."}
}

func (g *generator) setOwner(s *discoveryv1.EndpointSlice) {
	s.AddressType = usually(g, oneOf(g, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6), discoveryv1.AddressTypeFQDN)
	s.DeletionTimestamp = usually(g, nil, &metav1.Time{Time: s.CreationTimestamp.Time})
	s.Labels = usually(g, map[string]string{discoveryv1.LabelServiceName: oneOf(g, "a", "b", "c")},
		nil, map[string]string{discoveryv1.LabelServiceName: ""})
}

func (g *generator) setSlicePorts(s *discoveryv1.EndpointSlice) {
	s.Ports = nil
	for i := range usually(g, 1+g.IntN(3), 0) {
		name, port := usually(g, [...]string{"web", "dns", "more"}[i], "", "web"), usually(g, int32(8080+g.IntN(2)), 0, -1, 70000)
		protocol := usually(g, oftenIfBalanced(g, v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP), "", "HTTP")
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{
			Name: usually(g, &name, nil), Port: usually(g, &port, nil), Protocol: usually(g, &protocol, nil),
		})
	}
}

func (g *generator) setEndpoints(s *discoveryv1.EndpointSlice) {
	s.Endpoints = make([]discoveryv1.Endpoint, g.IntN(6))
	hints := g.chance(2)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.Addresses = g.endpointAddresses(s.AddressType)
		g.setNode(e)
		g.setConditions(e)
		if hints && !g.chance(12) {
			g.setHints(e)
		}
	}
}

func (g *generator) endpointAddresses(kind discoveryv1.AddressType) []string {
	v4, v6 := fmt.Sprintf("10.244.0.%d", g.IntN(30)), fmt.Sprintf("fd00:244::%x", 1+g.IntN(30))
	if kind == discoveryv1.AddressTypeIPv6 {
		v4, v6 = v6, v4
	}
	return usually(g, []string{v4}, nil, []string{"garbage"}, []string{v6}, []string{v4, "10.244.9.9"}, []string{"127.0.0.1"},
		[]string{"010.244.000.007"}, []string{"::ffff:10.244.0.7"}, []string{"fe80::1"}, []string{""}, []string{"FD00:0244::0007"}, []string{"fe80::1%eth0"}, []string{" 10.244.0.7"})
}

func (g *generator) setNode(e *discoveryv1.Endpoint) {
	name := oftenIfBalanced(g, nodeName, nodeName, "there", "elsewhere", "")
	e.NodeName = oneOf(g, &name, &name, nil)
}

func (g *generator) setConditions(e *discoveryv1.Endpoint) {
	yes, no := true, false
	c := &e.Conditions
	switch g.IntN(5) {
	case 0, 1:
		*c = discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}
	case 2:
		*c = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	case 3:
		*c = discoveryv1.EndpointConditions{}
	default:
		*c = discoveryv1.EndpointConditions{Ready: oneOf(g, nil, &yes, &no), Serving: oneOf(g, nil, &yes, &no), Terminating: oneOf(g, nil, &yes, &no)}
	}
}

func (g *generator) setHints(e *discoveryv1.Endpoint) {
	e.Hints = &discoveryv1.EndpointHints{}
	for range oneOf(g, 0, 1, 1, 2) {
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: usually(g, oneOf(g, "a", "a", "b", "c"), "")})
	}
	for range oneOf(g, 0, 0, 1, 2) {
		e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: usually(g, oneOf(g, nodeName, "there"), "")})
	}
}

// changeEndpoint changes one endpoint, the most frequent change in a cluster.
func (g *generator) changeEndpoint(s *discoveryv1.EndpointSlice) {
	if len(s.Endpoints) == 0 {
		g.setEndpoints(s)
		return
	}
	e := &s.Endpoints[g.IntN(len(s.Endpoints))]
	oneOf(g, g.setNode, g.setConditions, g.setConditions, g.setHints)(e)
}
