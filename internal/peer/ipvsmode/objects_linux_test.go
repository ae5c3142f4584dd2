//go:build ipvs

package ipvsmode

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	nodeName   = "here"
	nodeIP     = "192.0.2.1"
	nodeIP6    = "2001:db8::1"
	clientIP   = "192.0.2.2"
	clientIP6  = "2001:db8::2"
	gatewayIP  = "10.244.0.1"
	gatewayIP6 = "fd00:244::1"
	podRange   = "10.244.0.0/16"
	podRange6  = "fd00:244::/48"
	podPort    = 8080
)

// podIPs are the addresses of the endpoints. The second one is on this node.
func podIPs(ipv6 bool) []string {
	if ipv6 {
		return []string{"fd00:244::2", "fd00:244::3"}
	}
	return []string{"10.244.0.2", "10.244.0.3"}
}

// objects returns Services of all kinds, and their EndpointSlices. A Service whose name begins with
// remote has no endpoint on this node.
func objects() (services []*v1.Service, slices []*discoveryv1.EndpointSlice) {
	add := func(name, ip string, change func(*v1.ServiceSpec, *v1.ServiceStatus)) {
		s := service(name, ip)
		change(&s.Spec, &s.Status)
		services = append(services, s)
		if name != "idle" {
			slices = append(slices, slice(s))
		}
	}
	add("web", "10.96.0.1", func(spec *v1.ServiceSpec, status *v1.ServiceStatus) {
		spec.Ports[0].NodePort, spec.ExternalIPs = 30080, []string{"203.0.113.1"}
		balance(spec, status, "203.0.113.2")
	})
	add("local", "10.96.0.2", func(spec *v1.ServiceSpec, status *v1.ServiceStatus) {
		spec.Ports[0].NodePort, spec.HealthCheckNodePort = 30081, 30100
		balance(spec, status, "203.0.113.3")
		spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
	})
	add("ranges", "10.96.0.3", func(spec *v1.ServiceSpec, status *v1.ServiceStatus) {
		balance(spec, status, "203.0.113.4")
		spec.LoadBalancerSourceRanges = []string{clientIP + "/32"}
	})
	add("sticky", "10.96.0.4", func(spec *v1.ServiceSpec, _ *v1.ServiceStatus) {
		timeout := int32(600)
		spec.SessionAffinity = v1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &timeout}}
	})
	add("dns", "10.96.0.5", func(spec *v1.ServiceSpec, _ *v1.ServiceStatus) { spec.Ports[0].Protocol = v1.ProtocolUDP })
	add("idle", "10.96.0.6", func(*v1.ServiceSpec, *v1.ServiceStatus) {})
	add("internal", "10.96.0.7", func(spec *v1.ServiceSpec, _ *v1.ServiceStatus) {
		*spec.InternalTrafficPolicy = v1.ServiceInternalTrafficPolicyLocal
	})
	add("remote", "10.96.0.8", func(spec *v1.ServiceSpec, status *v1.ServiceStatus) {
		spec.Ports[0].NodePort, spec.HealthCheckNodePort = 30083, 30101
		balance(spec, status, "203.0.113.5")
		spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
	})
	add("remote-internal", "10.96.0.9", func(spec *v1.ServiceSpec, _ *v1.ServiceStatus) {
		*spec.InternalTrafficPolicy = v1.ServiceInternalTrafficPolicyLocal
	})
	add("denied", "10.96.0.10", func(spec *v1.ServiceSpec, status *v1.ServiceStatus) {
		balance(spec, status, "203.0.113.6")
		spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
	})
	add("six", "fd00:96::1", func(spec *v1.ServiceSpec, status *v1.ServiceStatus) {
		spec.Ports[0].NodePort, spec.ExternalIPs = 30082, []string{"2001:db8:1::1"}
		balance(spec, status, "2001:db8:1::2")
	})
	return services, slices
}

func balance(spec *v1.ServiceSpec, status *v1.ServiceStatus, ip string) {
	mode := v1.LoadBalancerIPModeVIP
	spec.Type, spec.ExternalTrafficPolicy = v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyCluster
	status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: ip, IPMode: &mode}}
}

func service(name, ip string) *v1.Service {
	policy, family := v1.ServiceInternalTrafficPolicyCluster, v1.IPv4Protocol
	if strings.Contains(ip, ":") {
		family = v1.IPv6Protocol
	}
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "1"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []v1.IPFamily{family},
			Ports:           []v1.ServicePort{{Name: "main", Port: 80, Protocol: v1.ProtocolTCP}},
			SessionAffinity: v1.ServiceAffinityNone, InternalTrafficPolicy: &policy,
		},
	}
}

func slice(s *v1.Service) *discoveryv1.EndpointSlice {
	port, name, protocol, ready := int32(podPort), s.Spec.Ports[0].Name, s.Spec.Ports[0].Protocol, true
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
		},
		AddressType: discoveryv1.AddressType(s.Spec.IPFamilies[0]),
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for i, ip := range podIPs(s.Spec.IPFamilies[0] == v1.IPv6Protocol) {
		node := fmt.Sprintf("node-%d", i)
		if i == 1 {
			node = nodeName
		}
		if i == 1 && strings.HasPrefix(s.Name, "remote") {
			continue
		}
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: &node,
		})
	}
	return out
}
