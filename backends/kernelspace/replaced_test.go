package kernelspace_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// shared is the address that pods of different nodes have one after the other.
func shared() netip.Addr { return netip.MustParseAddr("10.1.0.7") }

// podOn is the pod that has it, on a node.
func podOn(node string) *endpoints.Endpoint {
	e := on(node, remote(7))
	e.Local = node == "node-1"
	return e
}

// replacement is a change of the pod that has an address.
type replacement struct {
	from, to string // nodes
	version  hcn.Version
	overlay  bool
}

func (r replacement) String() string {
	kind := "L2Bridge"
	if r.overlay {
		kind = "overlay"
	}
	return fmt.Sprintf("%s to %s, %s, HNS %s", r.from, r.to, kind, r.version)
}

func replacements() (all []replacement) {
	for _, nodes := range [][2]string{{"node-1", "node-1"}, {"node-1", "node-2"}, {"node-2", "node-1"}} {
		all = append(all, replacement{nodes[0], nodes[1], newest(), false}, replacement{nodes[0], nodes[1], noModify(), false}, replacement{nodes[0], nodes[1], newest(), true})
	}
	// Only in an overlay network has the endpoint of a pod elsewhere anything of its node.
	return append(all, replacement{"node-2", "node-3", newest(), true}, replacement{"node-2", "node-3", noModify(), true})
}

// ports are Services of a pod that has the address: alone, with another one, and at an old and a new Service.
func (replacement) ports(node string) []*proxy.ServicePort {
	e := podOn(node)
	return []*proxy.ServicePort{service(1, e), service(2, e, local(1)), service(map[string]int{"node-1": 3, "node-2": 4, "node-3": 5}[node], e, remote(2))}
}

// begin makes a machine with the first pod.
func (r replacement) begin(t *testing.T) *machine {
	m := newMachine(t, r.version)
	if r.overlay {
		m = newOverlayOf(t, r.version)
	}
	if r.from == "node-3" {
		m.moveToNode3(shared())
	}
	if r.from == "node-1" {
		m.addPod(shared())
	}
	m.apply(r.ports(r.from)...)
	m.wantUses("before", shared(), 3)
	return m
}

// moveToNode3 gives an address of an overlay network to another node.
func (m *machine) moveToNode3(a netip.Addr) {
	m.SetRemoteSubnets(m.network,
		hcn.RemoteSubnet{Prefix: netip.MustParsePrefix("10.1.0.0/24"), ProviderAddress: netip.MustParseAddr("172.18.0.3")},
		hcn.RemoteSubnet{Prefix: netip.PrefixFrom(a, 32), ProviderAddress: netip.MustParseAddr("172.18.0.4")})
}

// replace replaces the pod in HNS, as CNI plugins do. That of this node gets an endpoint only if no other
// has the address.
func (r replacement) replace(m *machine) {
	m.t.Helper()
	if r.from == "node-1" {
		m.RemoveEndpoint(m.ids()[shared().String()])
	}
	if r.to == "node-3" {
		m.moveToNode3(shared())
	}
	if r.to == "node-1" {
		_, err := m.AddEndpoint(m.network, "pod", shared())
		if taken := r.from != "node-1"; (err != nil) != taken {
			m.t.Fatalf("a new endpoint here: got error %v, want one: %t", err, taken)
		}
	}
}

// want compares HNS with one that has never had the first pod.
func (r replacement) want(m *machine, when string) {
	m.t.Helper()
	other := replacement{from: r.to, version: r.version, overlay: r.overlay}.begin(m.t)
	m.want(when, strings.Split(other.Dump(), "\n")...)
	m.wantUses(when, shared(), 3)
}

// A pod that is replaced by another one with its address within one Apply, here, elsewhere or from here to
// elsewhere and back: load balancers use the endpoint of the new one. Where HNS makes no endpoint of the
// new pod while the old one's is there, the old one goes first.
func TestReplacedWithinOneApply(t *testing.T) {
	for _, r := range replacements() {
		t.Run(r.String(), func(t *testing.T) {
			m := r.begin(t)
			before := m.ids()[shared().String()]
			r.replace(m)
			m.apply(r.ports(r.to)...)
			if r.from == "node-2" && r.to == "node-1" {
				if id, exists := m.ids()[shared().String()]; exists {
					t.Fatalf("endpoint %s of the pod that was elsewhere is there, so the new pod can have none:\n%s", id, m.Dump())
				}
				m.addPod(shared())
			}
			if r.to != "node-2" { // no object of the API has changed since HNS has the endpoint or the subnet
				m.resync()
			}
			r.want(m, "afterwards")
			if now := m.ids()[shared().String()]; now == before {
				t.Errorf("got endpoint %s of %v as before, want another one", now, shared())
			}
			if n := m.writes(m.resync); n != 0 {
				t.Errorf("resync: got %d writes, want 0", n)
			}
		})
	}
}

// The same with a Runner, while each call of a kind fails once, before or after it takes effect.
func TestReplacedUnderFaults(t *testing.T) {
	for _, r := range replacements() {
		for _, method := range []string{"EndpointIDs", "Endpoint", "CreateEndpoint", "DeleteEndpoint", "ModifyLoadBalancer", "CreateLoadBalancer", "DeleteLoadBalancer", "LoadBalancer"} {
			for _, f := range []hcntest.Fault{denied(), {Err: errDenied, Done: true}} {
				t.Run(fmt.Sprintf("%v/%s done %t", r, method, f.Done), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { r.replaceUnderFault(t, f, method) })
				})
			}
		}
	}
}

func (r replacement) replaceUnderFault(t *testing.T, f hcntest.Fault, method string) {
	m := r.begin(t)
	m.fail(1, f, method)
	r.replace(m)
	for try := 0; ; try++ {
		err := m.try(r.ports(r.to)...)
		if r.to == "node-1" {
			_, _ = m.AddEndpoint(m.network, "pod", shared()) // until it works
		}
		if err == nil && try > 0 && m.finished() {
			break
		}
		if try == 5 {
			t.Fatalf("five Applies did not finish: error %v, problems %v", err, m.problems())
		}
		m.applied = proxy.Snapshot{}
	}
	r.want(m, "afterwards")
}

// A pod that moves here is served soon although its endpoint can be made only when that of the former
// pod is gone.
func TestMovesHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, newMachine(t, newest()))
		r.serveOn("node-2", "web", clusterIP(1), shared())
		r.wantUses("elsewhere", shared(), 1)
		r.serveOn("node-1", "web", clusterIP(1), shared())
		r.addPod(shared())
		time.Sleep(200 * time.Millisecond)
		r.want("here", "load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.1.0.7")
	})
}
