package kernelspace_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// subnet is that of this node's pods.
func subnet() netip.Prefix { return netip.MustParsePrefix("10.0.0.0/24") }

// said returns the endpoint with the address of a pod of this node, of which an EndpointSlice says that it is on
// another node.
func said(node string, i int) *endpoints.Endpoint {
	e := on(node, local(i))
	e.Local = false
	return e
}

// ownNode is a node whose pod range is known.
func ownNode() *proxy.Node {
	n := theNode()
	n.LocalTraffic = proxy.LocalTraffic{NodePodCIDRs: true, Sources: []netip.Prefix{subnet()}}
	return n
}

// newOwn makes a machine with an L2Bridge network whose subnet is that of this node's pods.
func newOwn(t *testing.T) *machine { return newOwnOf(t, subnet()) }

func newOwnOf(t *testing.T, subnet netip.Prefix) *machine {
	m := newMachine(t, newest())
	m.RemoveNetwork(m.network)
	m.addNetwork(hcn.Network{Name: networkName, Type: "L2Bridge", Subnets: []netip.Prefix{subnet}})
	if _, err := m.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// An EndpointSlice may say that an address is elsewhere which only a pod of this node can have, and that HNS may
// have no endpoint for yet. A remote endpoint with it would keep the CNI plugin from making that of the pod: there
// is none, and the pod serves when its endpoint appears.
func TestAddressOfThisNodesSubnet(t *testing.T) {
	unmasked := newOwnOf(t, netip.MustParsePrefix("10.0.0.1/24")) // a client may pass on what HNS returns
	for what, m := range map[string]*machine{"L2Bridge": newOwn(t), "unmasked": unmasked, "overlay": newOverlay(t)} {
		for _, node := range []string{"node-2", ""} {
			e := said(node, 20)
			s := proxy.NewSnapshot(ownNode(), service(1, e, local(1)), service(2, e))
			testenv.NoError(t, m.applySnapshot(s))
			m.wantUses(what+", no pod", pod(1), 1)
			if id, exists := m.ids()[pod(20).String()]; exists {
				t.Errorf("%s, on node %q: got endpoint %s of %v, want none", what, node, id, pod(20))
			}
			if m.finished() {
				t.Errorf("%s, on node %q: got no problem, want one: an endpoint is missing", what, node)
			}
			id := m.addPod(pod(20)) // fails if the address is taken
			if _, err := m.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			m.Notify(hcn.EndpointsChanged)
			if err := m.waitDrift(); err != nil || !m.drifted() {
				t.Errorf("%s, on node %q: got error %v or no drift, want some: the endpoint is there", what, node, err)
			}
			m.resync()
			m.wantUses(what+", the pod is there", pod(20), 2)
			if n := m.writes(m.resync); n != 0 || !m.finished() {
				t.Errorf("%s, on node %q: got %d writes and problems %v, want none", what, node, n, m.problems())
			}
			m.RemoveEndpoint(id)
			m.resync()
			m.wantUses(what+", the pod has gone", pod(1), 1)
		}
	}
}

// A subnet may be one of several nodes: that of an L2Bridge network that is no pod range of this node, as
// where pods have addresses of a cloud's network, and the part of an overlay network's that a remote subnet has.
func TestAddressOfSharedSubnet(t *testing.T) {
	wide := theNode()
	wide.LocalTraffic = proxy.LocalTraffic{Sources: []netip.Prefix{subnet()}} // of the cluster
	other := theNode()
	other.LocalTraffic = proxy.LocalTraffic{NodePodCIDRs: true, Sources: snapshots.Prefixes("10.0.0.0/25")}
	for what, node := range map[string]*proxy.Node{"none": theNode(), "the cluster's": wide, "another": other} {
		m := newOwn(t)
		testenv.NoError(t, m.applySnapshot(proxy.NewSnapshot(node, service(1, said("node-2", 20)))))
		m.wantUses("L2Bridge, pod range: "+what, pod(20), 1)
		// The Node gets its range: the address is free for its pod.
		testenv.NoError(t, m.applySnapshot(proxy.NewSnapshot(ownNode(), service(1, said("node-2", 20)))))
		m.addPod(pod(20))
		m.resync()
		m.wantUses("L2Bridge, then that of this node", pod(20), 1)
	}
	synctest.Test(t, func(t *testing.T) {
		m := newOverlay(t)
		m.apply(service(1, said("node-2", 20)))
		m.wantUses("overlay", pod(20), 0)
		m.SetRemoteSubnets(m.network, hcn.RemoteSubnet{Prefix: netip.MustParsePrefix("10.0.0.16/28"), ProviderAddress: netip.MustParseAddr("172.18.0.3")})
		time.Sleep(time.Second)
		if !m.drifted() {
			t.Fatal("after a second: got no drift, want some: an endpoint was missing")
		}
		m.resync()
		m.wantUses("overlay, remote subnet", pod(20), 1)
	})
}
