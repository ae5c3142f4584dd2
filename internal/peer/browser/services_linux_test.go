package browser

import (
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/proxy"
)

// long is a name with the greatest length, and without a place where a browser would break it.
const long = "lllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll"

// addBalanced adds a Service of type LoadBalancer with long addresses and names.
func addBalanced(tracker *proxy.ServiceChangeTracker) {
	s := service(long, "fd00:10:96:ffff:ffff:ffff:ffff:ffff")
	s.Spec.Type = v1.ServiceTypeLoadBalancer
	s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol}
	s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = v1.ServiceExternalTrafficPolicyLocal, 32100
	s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	s.Spec.Ports[0].NodePort = 30080
	s.Spec.LoadBalancerSourceRanges = []string{"2001:db8:ffff:ffff::/64"}
	s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"}}
	tracker.UpdateService(s)
	tracker.UpdateEndpointSlice(objects.Slice("long-1", long,
		"fd00:10:244:1:ffff:ffff:ffff:ffff @node-1", "fd00:10:244:2:ffff:ffff:ffff:ffff @ip-10-0-137-214.eu-central-1.compute.internal"))
}

func service(name, ip string) *v1.Service {
	s := objects.Service("default/service", ip)
	s.Name = name // A name of a test may have a slash.
	return s
}
