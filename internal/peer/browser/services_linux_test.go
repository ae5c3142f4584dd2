package browser

import (
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/proxy"
)

// long is a name with the greatest length, and without a place where a browser would break it.
const long = "lllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll"

// addBalanced adds a Service of type LoadBalancer with long addresses and names.
func addBalanced(tracker proxy.ServiceChangeTracker) {
	s := service(long, "fd00:10:96:ffff:ffff:ffff:ffff:ffff")
	s.Spec.Type = v1.ServiceTypeLoadBalancer
	s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol}
	s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = v1.ServiceExternalTrafficPolicyLocal, 32100
	s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	s.Spec.Ports[0].NodePort = 30080
	s.Spec.LoadBalancerSourceRanges = []string{"2001:db8:ffff:ffff::/64"}
	s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"}}
	tracker.UpdateService(s)
	tracker.UpdateEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "long-1", Labels: map[string]string{discoveryv1.LabelServiceName: long}},
		AddressType: discoveryv1.AddressTypeIPv6,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(v1.ProtocolTCP), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"fd00:10:244:1:ffff:ffff:ffff:ffff"}, NodeName: new("node-1")},
			{Addresses: []string{"fd00:10:244:2:ffff:ffff:ffff:ffff"}, NodeName: new("ip-10-0-137-214.eu-central-1.compute.internal")},
		},
	})
}

func service(name, ip string) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.Unix(1000, 0)},
		Spec:       v1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}}},
	}
}
