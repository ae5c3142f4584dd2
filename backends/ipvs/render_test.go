package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Render has no state: many concurrent calls, for several worlds and in any order, return
// what one call returns. A commit needs keys and values only, and no payloads but the node.
func TestRenderIsPure(t *testing.T) {
	random := testenv.Random(t)
	var all []stagetest.Rendering
	taken := frontend{key{protocol: ipaddr.TCP, addr: netip.AddrPortFrom(nodeAddress(), 30000)}}
	for _, node := range []*proxy.Node{stagetest.Node(), {NodePorts: proxy.NodePortAddresses{All: true}}, {}} {
		for _, known := range []any{nil, testFacts(), facts{schedulers: []string{"rr"}, host: testFacts().host, taken: map[frontend]bool{taken: true}}} {
			env := backends.Env{Node: node, Facts: known}
			all = append(all, stagetest.Rendering{Env: env})
			for i := range 60 {
				all = append(all, stagetest.Rendering{Env: env, Port: stagetest.RandomPort(random, i)})
			}
		}
	}
	stagetest.RunPurity(t, random, all, func() (backends.Render[key, value], func([]object) string) {
		return testRenderer(t).render, func(list []object) string { return fmt.Sprint(list) }
	})
}

// Objects that are not shared are rendered once by a port, whatever it is, and objects of one
// port differ from those of another one.
func TestKeysAreUnique(t *testing.T) {
	random := testenv.Random(t)
	r := testRenderer(t)
	for i := range 300 {
		seen := map[key]bool{}
		for _, o := range r.render(testEnv(), stagetest.RandomPort(random, i), nil) {
			if seen[o.Key] && !o.Key.Shared() {
				t.Fatalf("port %d: got object %+v twice", i, o.Key)
			}
			seen[o.Key] = true
		}
	}
}

func text(o object) string {
	k := o.Key
	s := fmt.Sprintf("%d %s %v", k.kind, k.set.base(), k.addr)
	if k.inside {
		s += " inside"
	}
	if k.kind == kindDestination {
		s += fmt.Sprintf(" -> %v weight %d", k.real, o.Value.weight)
	}
	if k.source.IsValid() {
		s += " from " + k.source.String()
	}
	return s
}

// The objects of a Service with externalTrafficPolicy Local: connections from outside go to the
// local pool, those from inside to a virtual server of their own, which marks select.
func TestTwoPools(t *testing.T) {
	r := testRenderer(t)
	p := stagetest.Port(v1.IPv4Protocol, 1, 2)
	p.Local, p.ExternalLocal = p.Cluster[:1], true
	p.Frontends = []proxy.Frontend{{
		Kind: proxy.LoadBalancer, Addr: netip.MustParseAddrPort("203.0.113.1:80"),
		Restricted: true, AllowedSources: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")},
		FromInside:  proxy.TrafficRoute{Action: proxy.Forward, Masquerade: proxy.MasqueradeNonPods},
		FromOutside: proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal},
	}}
	var got []string
	for _, o := range r.render(testEnv(), p, nil) {
		got = append(got, text(o))
	}
	slices.Sort(got)
	a, b := p.Cluster[0].Addr, p.Cluster[1].Addr
	want := []string{
		"0 IPVS-IPS 203.0.113.1:0",
		"5 IPVS-SERVERS 203.0.113.1:80",
		"0 LOAD-BALANCER-SOURCE-CIDR 203.0.113.1:80 from 0.0.0.0/1",
		"0 LOAD-BALANCER-SOURCE-CIDR 203.0.113.1:80 from 128.0.0.0/1",
		"0 MARKS 203.0.113.1:80",
		"0 MASQ-NODE 203.0.113.1:80",
		"1 LOAD-BALANCER-FW 203.0.113.1:80",
		"2  203.0.113.1:0",
		"3  203.0.113.1:80",
		"3  203.0.113.1:80 inside",
		fmt.Sprintf("4  203.0.113.1:80 -> %v weight 1", a),
		fmt.Sprintf("4  203.0.113.1:80 inside -> %v weight 1", a),
		fmt.Sprintf("4  203.0.113.1:80 inside -> %v weight 1", b),
		"5 INSIDE 203.0.113.1:80",
		"5 LOAD-BALANCER-LOCAL 203.0.113.1:80",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// The kernel ignores the ports of real servers of persistent servers for marked packets. So with
// session affinity, only the server of the address is persistent.
func TestMarkedServersAreNotPersistent(t *testing.T) {
	p := stagetest.Port(v1.IPv4Protocol, 1, 2)
	p.Local, p.ExternalLocal = p.Cluster[:1], true
	p.Affinity = affinity.Config{Timeout: affinity.DefaultTimeout}
	p.Frontends = []proxy.Frontend{{
		Kind: proxy.LoadBalancer, Addr: netip.MustParseAddrPort("203.0.113.1:80"),
		FromInside:  proxy.TrafficRoute{Action: proxy.Forward},
		FromOutside: proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal},
	}}
	servers := 0
	for _, o := range testRenderer(t).render(testEnv(), p, nil) {
		if o.Key.kind != kindServer {
			continue
		}
		servers++
		if got, want := o.Value.flags&flagPersistent != 0, !o.Key.inside; got != want {
			t.Errorf("%s is persistent: got %v, want %v", text(o), got, want)
		}
	}
	if servers != 2 {
		t.Errorf("virtual servers: got %d, want 2", servers)
	}
}

// An address of a Service that an interface of the node has stays where it is: neither is it added
// to the device, nor are its other ports rejected.
func TestServiceAddressOfTheNode(t *testing.T) {
	r := testRenderer(t)
	served := false
	for _, o := range r.render(testEnv(), atNode(0, 80, 0), nil) {
		served = served || o.Key.kind == kindServer && o.Key.addr.Addr() == nodeAddress()
		if o.Key.isAddress() && o.Key.addr.Addr() == nodeAddress() {
			t.Errorf("address of the node: got object %s, want none", text(o))
		}
	}
	if !served {
		t.Error("address of the node: got no virtual server")
	}
}

// The names of sets are short enough for the kernel, and differ.
func TestSetNames(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		for _, s := range allSets() {
			name := setName("VIPKIT7-", f, s)
			if len(name) > longestSet || seen[name] || strings.TrimPrefix(name, "VIPKIT7-") == "" {
				t.Errorf("set %d of %s: got name %q", s, f, name)
			}
			seen[name] = true
		}
	}
}
