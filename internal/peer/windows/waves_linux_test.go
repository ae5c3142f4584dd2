package windows_test

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// wave is changes of objects, and parts of what HNS must then have.
type wave struct {
	name   string
	change func(*cluster)
	want   []string
}

func waves() []wave {
	return []wave{
		{"Services of all kinds", (*cluster).createAll, []string{
			":53/17->8000", ":53/6->8001", "203.0.113.1:80/6", "203.0.113.9:80/6", "203.0.113.3:80/6", "2001:db8:1::1",
			"distribution 2", "flags 18", "endpoint remote fd00:244:0:2::4",
		}},
		{"endpoints fail", (*cluster).fail, nil},
		{"endpoints return", (*cluster).recover, nil},
		{"pods move", (*cluster).move, nil},
		{"ports change", (*cluster).changePorts, []string{":8080/6->8002"}},
		{"policies change", (*cluster).changePolicies, nil},
		{"types change", (*cluster).changeTypes, nil},
		{"Services go", (*cluster).deleteSome, nil},
		{"addresses are used again", (*cluster).reuse, nil},
	}
}

func (c *cluster) createAll() {
	local, dual := v1.ServiceInternalTrafficPolicyLocal, v1.IPFamilyPolicyRequireDualStack
	c.create("web", ports(tcp("http", 80), tcp("https", 443)), here(1), there(1))
	c.create("dns", ports(udp("dns", 53), tcp("dns-tcp", 53)), here(2), there(2), there(3))
	s := ports(tcp("http", 80))
	c.create("idle", s)
	s.Type = v1.ServiceTypeNodePort
	c.create("node", s, here(3), there(1))
	s.IPFamilyPolicy = &dual
	c.create("both", s, here(1), there(4))
	s = ports(tcp("http", 80))
	s.IPFamilies = []v1.IPFamily{v1.IPv6Protocol}
	c.create("six", s, here(2), there(4))
	s = ports(tcp("http", 80))
	s.SessionAffinity = v1.ServiceAffinityClientIP
	c.create("sticky", s, here(1), here(2))
	s = ports(tcp("http", 80))
	s.InternalTrafficPolicy = &local
	c.create("internal", s, here(6), there(6))
	s = ports(tcp("http", 80))
	s.Type, s.ExternalIPs, s.IPFamilyPolicy = v1.ServiceTypeLoadBalancer, []string{"203.0.113.9"}, &dual
	c.create("balanced", s, here(4), there(5))
	c.assign("balanced", "203.0.113.1", "203.0.113.2", "2001:db8:1::1")
	s = ports(tcp("http", 80))
	s.Type, s.ExternalTrafficPolicy = v1.ServiceTypeLoadBalancer, v1.ServiceExternalTrafficPolicyLocal
	c.create("local", s, here(5), there(5))
	c.assign("local", "203.0.113.3")
	c.create("elsewhere", s, there(6))
	c.assign("elsewhere", "203.0.113.4")
}

func failed(p pod) pod {
	p.failed = true
	return p
}

func ending(p pod) pod {
	p.ending = true
	return p
}

func (c *cluster) fail() {
	c.setPods("web", failed(here(1)), failed(there(1)))
	c.setPods("dns", here(2), failed(there(2)), ending(there(3)))
	c.setPods("both", ending(here(1)), ending(there(4)))
	c.setPods("local", ending(here(5)), there(5))
	c.setPods("balanced", failed(here(4)), there(5))
	c.setPods("internal", failed(here(6)), there(6))
	c.setPods("six")
}

func (c *cluster) recover() {
	c.setPods("web", here(1), there(1))
	c.setPods("dns", here(2), there(2), there(3))
	c.setPods("both", here(1), there(4))
	c.setPods("local", here(5), there(5))
	c.setPods("balanced", here(4), there(5))
	c.setPods("internal", here(6), there(6))
	c.setPods("six", here(2), there(4))
}

// move replaces pods, which takes more than one change, so that some endpoints are needed by more
// Services than before and others by none.
func (c *cluster) move() {
	c.setPods("web", there(1), there(2), there(3), here(4))
	c.setPods("dns", here(6))
	c.setPods("node", there(6))
	c.setPods("elsewhere", here(6))
	c.setPods("elsewhere", here(5), here(6))
	c.setPods("six", here(1), here(3))
	c.setPods("idle", there(1), there(6))
}

func (c *cluster) changePorts() {
	c.change("web", func(s *v1.ServiceSpec) { s.Ports = append(s.Ports, tcp("admin", 8080)) })
	c.setPods("web", there(1), there(2), there(3), here(4))
	c.change("dns", func(s *v1.ServiceSpec) { s.Ports = s.Ports[:1] })
	c.change("node", func(s *v1.ServiceSpec) { s.Ports[0].Port, s.Ports[0].NodePort = 81, 0 })
	c.change("balanced", func(s *v1.ServiceSpec) { s.ExternalIPs = []string{"203.0.113.10"} })
	c.assign("balanced", "203.0.113.2", "2001:db8:1::2")
}

func (c *cluster) changePolicies() {
	c.change("balanced", func(s *v1.ServiceSpec) { s.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal })
	c.change("elsewhere", func(s *v1.ServiceSpec) { s.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster })
	c.change("internal", func(s *v1.ServiceSpec) { *s.InternalTrafficPolicy = v1.ServiceInternalTrafficPolicyCluster })
	c.change("sticky", func(s *v1.ServiceSpec) {
		s.SessionAffinity, s.SessionAffinityConfig = v1.ServiceAffinityNone, nil
	})
	c.change("node", func(s *v1.ServiceSpec) { s.SessionAffinity = v1.ServiceAffinityClientIP })
}

func (c *cluster) changeTypes() {
	c.change("idle", func(s *v1.ServiceSpec) { s.Type = v1.ServiceTypeNodePort })
	c.change("both", func(s *v1.ServiceSpec) {
		s.Type, s.Ports[0].NodePort = v1.ServiceTypeClusterIP, 0
		s.ExternalTrafficPolicy = ""
	})
	c.change("sticky", func(s *v1.ServiceSpec) { s.Type = v1.ServiceTypeLoadBalancer })
	c.assign("sticky", "203.0.113.5")
}

func (c *cluster) deleteSome() {
	for _, name := range []string{"dns", "both", "balanced", "idle", "internal"} {
		c.delete(name)
	}
}

// reuse makes Services that have addresses of deleted ones: of one that is deleted at once before.
func (c *cluster) reuse() {
	address := c.get("node").Spec.ClusterIP
	c.delete("node")
	s := ports(tcp("http", 80), udp("dns", 53))
	s.ClusterIP = address
	c.create("after-node", s, here(1), there(5))
	s = ports(tcp("http", 80))
	s.Type, s.ExternalIPs = v1.ServiceTypeNodePort, []string{"203.0.113.9"}
	c.create("node", s, here(2), there(6))
}

// churn changes some Services, differently in each round, and leaves others alone.
func (c *cluster) churn(round int) {
	next := func(i int) int { return 1 + (round+i)%podsANode }
	name := func(round int) string { return fmt.Sprintf("round-%d", round) }
	s := ports(tcp("http", 80), udp("dns", 53))
	s.Type = v1.ServiceTypeNodePort
	c.create(name(round), s, here(next(0)), there(next(1)))
	c.setPods("node", here(next(2)), there(next(3)))
	c.setPods("six", there(next(4)))
	if round > 2 {
		c.delete(name(round - 2))
	}
}
