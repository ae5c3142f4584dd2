package objects

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

// Edit changes a Service.
type Edit = func(*v1.Service)

// Name returns the name that a text has as namespace/name. The namespace may be missing, and is
// "default" then.
func Name(text string) types.NamespacedName {
	namespace, name, found := strings.Cut(text, "/")
	if !found {
		namespace, name = "default", text
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func meta(text string) metav1.ObjectMeta {
	n := Name(text)
	return metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name}
}

// Service makes a Service with ClusterIPs, separated by spaces, and the port "http 80". It was
// created in second 1000.
func Service(name, clusterIPs string, edits ...Edit) *v1.Service {
	s := &v1.Service{ObjectMeta: meta(name), Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP}}
	for _, edit := range append([]Edit{Created(1000), ClusterIPs(strings.Split(clusterIPs, " ")...), Ports("http 80")}, edits...) {
		edit(s)
	}
	return s
}

// Created sets the second of the creation.
func Created(second int64) Edit {
	return func(s *v1.Service) { s.CreationTimestamp = metav1.Unix(second, 0) }
}

// ClusterIPs sets the ClusterIPs, and if there are several of them also their families.
func ClusterIPs(addrs ...string) Edit {
	return func(s *v1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = addrs[0], addrs, nil
		for _, a := range addrs {
			if len(addrs) > 1 {
				s.Spec.IPFamilies = append(s.Spec.IPFamilies, ipaddr.FamilyOf(netip.MustParseAddr(a)))
			}
		}
	}
}

// Ports sets the ports, such as "http 80:30080" or "53/UDP".
func Ports(texts ...string) Edit {
	return func(s *v1.Service) {
		s.Spec.Ports = nil
		for _, text := range texts {
			name, numbers, protocol := cutPort(text)
			port, nodePort, _ := strings.Cut(numbers, ":")
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: name, Protocol: protocol, Port: number(port), NodePort: number(nodePort)})
		}
	}
}

// cutPort returns the name, the numbers and the protocol of a port.
func cutPort(text string) (name, numbers string, protocol v1.Protocol) {
	rest := text
	if before, after, found := strings.Cut(text, " "); found {
		name, rest = before, after
	}
	numbers, after, found := strings.Cut(rest, "/")
	if !found {
		after = string(v1.ProtocolTCP)
	}
	return name, numbers, v1.Protocol(after)
}

// number parses the number of a port; without text it is zero.
func number(text string) int32 {
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		panic(fmt.Sprintf("port %q: %v", text, err))
	}
	return int32(n)
}

// NodePort sets the node port of the first port.
func NodePort(n int32) Edit { return func(s *v1.Service) { s.Spec.Ports[0].NodePort = n } }

// ExternalIPs sets the external IPs.
func ExternalIPs(addrs ...string) Edit { return func(s *v1.Service) { s.Spec.ExternalIPs = addrs } }

// LoadBalancer sets the type LoadBalancer, and adds ingress addresses.
func LoadBalancer(addrs ...string) Edit {
	return func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		for _, a := range addrs {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: a})
		}
	}
}

// SourceRanges sets the source ranges of the load balancer.
func SourceRanges(list ...string) Edit {
	return func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = list }
}

// Sticky sets session affinity with a timeout.
func Sticky(seconds int32) Edit {
	return func(s *v1.Service) {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

// InternalLocal sets the internal traffic policy Local.
func InternalLocal(s *v1.Service) {
	s.Spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicyLocal)
}

// ExternalLocal sets the external traffic policy Local.
func ExternalLocal(s *v1.Service) {
	s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
}

// Many makes n items, each of its number.
func Many[T any](n int, item func(i int) T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = item(i)
	}
	return all
}
