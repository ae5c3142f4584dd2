package kernelspace_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// externalLocal is a Service with one endpoint here and one elsewhere, whose external policy is Local.
func externalLocal(kind proxy.FrontendKind, addr string) *proxy.ServicePort {
	p := service(1, local(1), remote(1))
	p.ExternalLocal, p.Local = true, []*endpoints.Endpoint{local(1)}
	f := frontend(kind, addr, 80)
	f.FromInside = proxy.TrafficRoute{Action: proxy.Forward}
	f.FromOutside = proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
	return with(p, f)
}

const (
	insideLimit = "spec.externalTrafficPolicy: HNS cannot distinguish connections from inside the cluster: those to external addresses and node ports also reach endpoints of this node only"
	// preserveLimit precedes the address.
	preserveLimit = "metadata.annotations[preserve-destination]: the destination can be preserved for endpoints of this node only: endpoints of other nodes do not serve "

	toBoth  = " source 172.18.0.2 to local 10.0.0.1; remote 10.1.0.1"
	toLocal = " source 172.18.0.2 to local 10.0.0.1"
)

// The frontend beside the ClusterIP gets the flags of its kind, and the endpoints of its route.
func TestFrontends(t *testing.T) {
	both := service(1, local(1), remote(1))
	restricted := func(ranges ...string) *proxy.ServicePort {
		f := frontend(proxy.LoadBalancer, "203.0.113.1", 80)
		f.Restricted = true
		for _, r := range ranges {
			f.AllowedSources = append(f.AllowedSources, netip.MustParsePrefix(r))
		}
		return with(both, f)
	}
	preserve := func(p *proxy.ServicePort) *proxy.ServicePort {
		return annotated(p, kernelspace.PreserveDestinationAnnotation, "true")
	}
	dropped := externalLocal(proxy.LoadBalancer, "203.0.113.1")
	dropped.Local, dropped.Frontends[1].FromOutside = nil, proxy.TrafficRoute{Action: proxy.Drop}
	for what, c := range map[string]struct {
		port    *proxy.ServicePort
		options func(*kernelspace.Options)
		want    string // of the frontend that is not the ClusterIP
		limits  []string
	}{
		"node port":               {with(both, frontend(proxy.NodePort, "0.0.0.0", 30080)), nil, "172.18.0.2:30080/6->8080 distribution 0 flags 18 flags 0" + toBoth, nil},
		"external IP":             {with(both, frontend(proxy.ExternalIP, "203.0.113.1", 80)), nil, "203.0.113.1:80/6->8080 distribution 0 flags 16 flags 0" + toBoth, nil},
		"load balancer":           {with(both, frontend(proxy.LoadBalancer, "203.0.113.1", 80)), nil, "203.0.113.1:80/6->8080 distribution 0 flags 16 flags 0" + toBoth, nil},
		"node port, Local":        {externalLocal(proxy.NodePort, "0.0.0.0"), nil, "172.18.0.2:80/6->8080 distribution 0 flags 18 flags 1" + toLocal, []string{insideLimit}},
		"external IP, Local":      {externalLocal(proxy.ExternalIP, "203.0.113.1"), nil, "203.0.113.1:80/6->8080 distribution 0 flags 16 flags 1" + toLocal, []string{insideLimit}},
		"load balancer, Local":    {externalLocal(proxy.LoadBalancer, "203.0.113.1"), nil, "203.0.113.1:80/6->8080 distribution 0 flags 16 flags 1" + toLocal, []string{insideLimit}},
		"Local without endpoints": {dropped, nil, "", []string{insideLimit}},
		"preserved destination":   {preserve(with(both, frontend(proxy.LoadBalancer, "203.0.113.1", 80))), nil, "203.0.113.1:80/6->8080 distribution 0 flags 28 flags 1" + toLocal, []string{preserveLimit + "203.0.113.1:80"}},
		"preserved, node port":    {preserve(with(both, frontend(proxy.NodePort, "0.0.0.0", 30080))), nil, "172.18.0.2:30080/6->8080 distribution 0 flags 18 flags 0" + toLocal, []string{preserveLimit + "0.0.0.0:30080"}},
		"preserved, none here": {preserve(with(service(1, remote(1)), frontend(proxy.LoadBalancer, "203.0.113.1", 80))), nil, "", []string{
			"metadata.annotations[preserve-destination]: the destination can be preserved for endpoints of this node only, and there is none: 203.0.113.1:80 is not served",
		}},
		"affinity":              {sticky(with(both, frontend(proxy.ExternalIP, "203.0.113.1", 80))), nil, "203.0.113.1:80/6->8080 distribution 2 flags 16 flags 0" + toBoth, []string{"spec.sessionAffinityConfig.clientIP.timeoutSeconds: HNS has no timeout: a client keeps its endpoint until the endpoints change"}},
		"source ranges":         {restricted("192.0.2.0/24"), nil, "", []string{"spec.loadBalancerSourceRanges: HNS cannot check the sources of connections: 203.0.113.1:80 is not served; have the load balancer check them, and set Options.ServeRestricted"}},
		"source ranges, served": {restricted("192.0.2.0/24"), func(o *kernelspace.Options) { o.ServeRestricted = true }, "203.0.113.1:80/6->8080 distribution 0 flags 16 flags 0" + toBoth, []string{"spec.loadBalancerSourceRanges: HNS cannot check the sources of connections: 203.0.113.1:80 is served to all sources"}},
		"source ranges of all":  {restricted("0.0.0.0/0"), nil, "203.0.113.1:80/6->8080 distribution 0 flags 16 flags 0" + toBoth, nil},
		"health check":          {with(both, frontend(proxy.LoadBalancer, "203.0.113.1", 80)), func(o *kernelspace.Options) { o.HealthChecks.Endpoint = "missing" }, "203.0.113.1:80/6->8080 distribution 0 flags 16 flags 0" + toBoth, nil},
	} {
		m := newMachine(t, newest())
		if c.options != nil {
			c.options(&m.options)
			m.restart()
		}
		m.apply(c.port)
		var got []string
		for line := range strings.Lines(m.Dump()) {
			if line = strings.TrimPrefix(strings.TrimSpace(line), "load balancer "); !strings.HasPrefix(line, "endpoint") && !strings.HasPrefix(line, "10.96") {
				got = append(got, line)
			}
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
		m.wantLimits(c.port, c.limits...)
	}
}

// HNS has no addresses of node ports. That is said if the node has some.
func TestNodePortAddresses(t *testing.T) {
	m := newMachine(t, newest())
	node := theNode()
	node.NodePorts = proxy.NodePortAddresses{Prefixes: snapshots.Prefixes("172.18.0.0/16")}
	p := with(service(1, local(1)), frontend(proxy.NodePort, "0.0.0.0", 30080))
	got := m.backend.Abilities().CheckLimits(node, p)
	if len(got) != 1 || got[0].Field != "spec.ports.nodePort" || !strings.Contains(got[0].Err.Error(), "30080") {
		t.Errorf("got %v, want one of the node port", got)
	}
}

// A node port does not answer if no address of its family is chosen.
func TestNodePortAddressesOfTheOtherFamily(t *testing.T) {
	for _, prefix := range []string{"fd00:18::/64", "127.0.0.0/8"} {
		m := newMachine(t, newest())
		node := theNode()
		node.NodePorts = proxy.NodePortAddresses{Prefixes: []netip.Prefix{netip.MustParsePrefix(prefix)}}
		p := with(service(1, local(1)), frontend(proxy.NodePort, "0.0.0.0", 30080))
		testenv.NoError(t, m.applySnapshot(proxy.NewSnapshot(node, p)))
		m.want("node ports at "+prefix, "load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1")
	}
}

// A pod in the network of the node has the node's address, which HNS may not have. Nothing waits for it,
// and new endpoints of others lead to no list.
func TestEndpointWithAddressOfNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, newMachine(t, newest()))
		r.serve("web", clusterIP(1), nodeAddr)
		r.serve("other", clusterIP(2), pod(1))
		before := r.Calls()["LoadBalancer"]
		for i := range 20 {
			r.addPod(pod(100 + i))
			time.Sleep(time.Second)
		}
		if n := r.Calls()["LoadBalancer"] - before; n != 0 || !r.finished() {
			t.Errorf("got %d queries and problems %v, want none", n, r.problems())
		}
		host := local(1)
		host.Addr = netip.AddrPortFrom(nodeAddr, 8080)
		elsewhere := on("node-2", host)
		elsewhere.Local = false
		r.wantLimits(service(1, elsewhere), "spec.selector: endpoint 172.18.0.2:8080 has an address of this node: here it serves only if HNS has an endpoint with that address")
		r.wantLimits(service(1, host), "spec.selector: endpoint 172.18.0.2:8080 has an address of this node: here it serves only if HNS has an endpoint with that address")
	})
}

// An EndpointSlice may say that the node's own address is elsewhere, in any network. No remote endpoint is made
// with it, and nothing waits for one.
func TestNodeAddressElsewhere(t *testing.T) {
	for what, m := range map[string]*machine{"L2Bridge": newMachine(t, newest()), "overlay": newOverlay(t)} {
		e := remote(1)
		e.Addr = netip.AddrPortFrom(nodeAddr, 8080)
		m.apply(service(1, e), service(2, e, local(1)))
		for _, have := range m.Endpoints() {
			if slices.Contains(have.Addresses, nodeAddr) {
				t.Errorf("%s: got endpoint %v, want none with an address of the node", what, have)
			}
		}
		m.wantUses(what, pod(1), 1)
		if !m.finished() {
			t.Errorf("%s: got problems %v, want none", what, m.problems())
		}
	}
}

// Direct server return of ClusterIPs is an option.
func TestDSROfClusterIPs(t *testing.T) {
	m := newMachine(t, newest())
	m.options.DSR = true
	m.restart()
	m.apply(service(1, local(1)))
	m.want("DSR", "load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 1"+toLocal)
}

// Both families and all protocols are served side by side, at one node port number too.
func TestFamiliesAndProtocols(t *testing.T) {
	m := newMachine(t, newest())
	m.addPod(netip.MustParseAddr("fd00:10::1"))
	var all []*proxy.ServicePort
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} {
		four := service(1, local(1))
		four.Name.Protocol = protocol
		six := &proxy.ServicePort{Name: four.Name, Cluster: snapshots.Endpoints("fd00:10::1 local", "fd00:11::1:203 @node-2")}
		six.Name.Family = v1.IPv6Protocol
		six = with(six, frontend(proxy.ClusterIP, "fd00:96::1", 80), frontend(proxy.NodePort, "::", 30080))
		all = append(all, with(four, frontend(proxy.NodePort, "0.0.0.0", 30080)), six)
	}
	m.apply(all...)
	lines := strings.Split(m.Dump(), "\n")
	for _, want := range []string{
		"endpoint remote fd00:11::1:203 mac 02-11-03-02-01-00",
		"load balancer fd00:96::1:80/132->8080 distribution 0 flags 0 flags 2 to local fd00:10::1; remote fd00:11::1:203",
		"load balancer :30080/17->8080 distribution 0 flags 18 flags 2 to local fd00:10::1; remote fd00:11::1:203",
		"load balancer 172.18.0.2:30080/132->8080 distribution 0 flags 18 flags 0" + toLocal,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("got\n%s\nwant a line %s", m.Dump(), want)
		}
	}
	if len(lines) != 13 {
		t.Errorf("got %d objects, want 12 load balancers and an endpoint", len(lines))
	}
	m.restart()
	if n := m.writes(func() { m.apply(all...) }); n != 0 {
		t.Errorf("after a restart: got %d writes, want 0", n)
	}
}

// Node ports answer nowhere if no address of the family does. Families that are not served are no
// errors.
func TestNothingToServe(t *testing.T) {
	m := newMachine(t, newest())
	node := theNode()
	node.NodePorts = proxy.NodePortAddresses{Prefixes: snapshots.Prefixes("127.0.0.0/8", "fd00::/16")}
	if err := m.applySnapshot(proxy.NewSnapshot(node, with(service(1), frontend(proxy.NodePort, "0.0.0.0", 30080)))); err != nil {
		t.Fatal(err)
	}
	p := service(1, local(1))
	p.Frontends[0].Kind, p.Frontends[0].Addr = proxy.NodePort, netip.MustParseAddrPort("0.0.0.0:30080")
	testenv.NoError(t, m.applySnapshot(proxy.NewSnapshot(node, p)))
	m.want("no address for node ports")
	m.options.Families = []v1.IPFamily{v1.IPv6Protocol}
	m.restart()
	m.apply(service(1, local(1)))
	m.want("another family")
	m.wantLimits(sticky(service(1, local(1))))
}

// With the annotation, load balancers are made again and not modified.
func TestOptimizationDisabled(t *testing.T) {
	m := newMachine(t, newest())
	p := func(e *endpoints.Endpoint) *proxy.ServicePort {
		return annotated(service(1, e), kernelspace.OptimizationAnnotation, "DISABLED")
	}
	m.apply(p(local(1)))
	m.apply(p(local(2)))
	if n := m.Calls()["ModifyLoadBalancer"]; n != 0 || m.Calls()["CreateLoadBalancer"] != 2 {
		t.Errorf("got %d modifications, want 0, and two creations: %v", n, m.Calls())
	}
}

// Without features there are limits.
func TestLimitsOfOldVersions(t *testing.T) {
	m := newMachine(t, hcn.Version{Major: 9, Minor: 2})
	p := annotated(sticky(with(service(1, local(1)), frontend(proxy.LoadBalancer, "203.0.113.1", 80))), kernelspace.PreserveDestinationAnnotation, "true")
	m.apply(p)
	m.wantLimits(p,
		"spec.sessionAffinity: this version of HNS has no session affinity: a client's connections reach different endpoints",
		"metadata.annotations[preserve-destination]: this version of HNS has no direct server return: the destination is not preserved")
}
