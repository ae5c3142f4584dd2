package backendtest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Main runs the tests of a package, with the privileges to build the testbed:
// without them it runs the test program again in a user namespace. It is for
// TestMain, and returns the status to exit with, which is not 0 if a test failed
// or a goroutine still runs. If the system denies user namespaces it reports that
// on standard error, and the tests that need the testbed are skipped.
func Main(m *testing.M) int { return netnstest.Main(m, testenv.Namespaces) }

// testbed is a small cluster of network namespaces, with real servers:
//
//	client  local  local2         outside   stranger
//	      \   |   /                   |      |
//	       [ node ]-------------------+------+
//	        |    |
//	 [ gateway ] [ remote-node ]
//	               |        |
//	             remote  remote2
//
// The node is where a backend programs its dataplane. Packets between two hosts of
// the drawing pass the hosts between them, in both directions. The gateway is the
// node's default route and owns all ranges of virtual addresses, so it answers packets
// that leave the node without translation. Links have only the hosts' own addresses,
// and the node has the same one at all links except those of pods, so that is its
// source address when it masquerades. nodeTowards has the exceptions in a [world].
//
// Its methods may be called from several goroutines at once.
type testbed struct {
	world world
	lab   *lab.Lab
	hosts []*host
	// lacks reports whether the dataplane of the node lacks a capability; nil: it has all.
	lacks func(Capability) bool
	// lost says that an answer was missing after the whole patience of a probe.
	lost atomic.Bool
}

// host is a host with its network namespace.
type host struct {
	hostSpec
	ns *netns.NS
	// uplink is the next hop of the default route; nil for the node.
	uplink *host
	// flows counts the ports that flows were made from.
	flows atomic.Uint32
}

// Flows are made from sourcePorts ports from firstSourcePort on, as the kernel would choose.
const firstSourcePort, sourcePorts = 32768, 28232

// sourcePort returns a port that no flow of the host had until all others were used: a
// dataplane may send a flow with the port of an earlier one, by an entry in one of its tables
// that outlives the flow, where that one went.
func (h *host) sourcePort() uint16 {
	return uint16(firstSourcePort + h.flows.Add(1)%sourcePorts)
}

// setUp returns a testbed that ends with the test.
func setUp(t testing.TB) *testbed {
	t.Helper()
	return setUpIn(t, world{})
}

// setUpIn returns the testbed of a world, which ends with the test.
func setUpIn(t testing.TB, w world) *testbed {
	t.Helper()
	b := &testbed{world: w, lab: lab.New(t)}
	for _, s := range hostSpecs() {
		s.addrs = slices.DeleteFunc(s.addrs, func(a netip.Addr) bool { return !w.has(a) })
		h := &host{hostSpec: s, ns: b.lab.Add(w.plan(s)), uplink: b.host(s.uplink)}
		b.hosts = append(b.hosts, h)
		if s.name == atRemoteNode && w.tunnelMTU > 0 {
			testenv.NoError(t, b.addTunnel(h))
		}
	}
	testenv.NoError(t, b.addIdle())
	for _, s := range services() {
		for _, port := range s.ports {
			b.lab.Serve(string(s.at), s.name, port)
		}
	}
	b.configureWorld(t)
	return b
}

// plan returns how a host is built in the world.
func (w *world) plan(s hostSpec) lab.Host {
	h := lab.Host{Name: string(s.name), Uplink: string(s.uplink), Link: s.attachment}
	bits := func(a netip.Addr) int { return a.BitLen() }
	switch {
	case s.name == atNode:
		h.Sysctls = w.sysctls
	case w.bridge != nil && isPod(s.name):
		h.Bridge, h.Hairpin, h.Gateway = bridgeName, w.bridge.hairpin, texts(bridgeAddrs())
		bits = func(a netip.Addr) int { return map[bool]int{true: 24, false: 64}[a.Is4()] }
	case s.uplink == atNode && !isPod(s.name):
		h.Gateway = texts(w.addrsAt(s.attachment))
	}
	var own, all, virtual []netip.Prefix
	for _, a := range s.addrs {
		own, all = append(own, netip.PrefixFrom(a, bits(a))), append(all, everything(a))
	}
	for _, p := range virtualRanges() {
		if w.has(p.Addr()) {
			virtual = append(virtual, p)
		}
	}
	switch {
	case s.name == atGateway:
		h.Behind, h.Owned = texts(all), texts(virtual)
	case s.name == atRemoteNode && w.tunnelMTU == 0:
		h.Behind = texts(w.remotePods())
	}
	h.Addrs = texts(own)
	return h
}

// remotePods returns the addresses of the pods of the other node.
func (w *world) remotePods() (all []netip.Prefix) {
	for _, s := range hostSpecs() {
		for _, a := range s.addrs {
			if s.uplink == atRemoteNode && w.has(a) {
				all = append(all, single(a))
			}
		}
	}
	return all
}

func texts(all []netip.Prefix) string {
	var words []string
	for _, p := range all {
		words = append(words, p.String())
	}
	return strings.Join(words, " ")
}

// host returns a host of the testbed; nil if there is none of that name.
func (b *testbed) host(at hostName) *host {
	i := slices.IndexFunc(b.hosts, func(h *host) bool { return h.name == at })
	if i < 0 {
		return nil
	}
	return b.hosts[i]
}

// node returns the namespace of the node.
func (b *testbed) node() *netns.NS { return b.host(atNode).ns }

// addr returns the first address of a host in a family.
func (b *testbed) addr(at hostName, family v1.IPFamily) netip.Addr {
	return b.host(at).addr(family)
}

// nodeTowards returns the source address that the node selects for its own packets to a
// destination, and for masqueraded ones.
func (b *testbed) nodeTowards(to netip.Addr) netip.Addr {
	for _, s := range b.world.sourceAddrs() {
		if s.towards.Contains(to) {
			return s.addr
		}
	}
	if b.isNode(to) {
		return to // packets of a host to itself have that source
	}
	return b.addr(atNode, ipaddr.FamilyOf(to))
}

// entry returns the interface of the node that receives packets from a host; empty for
// the node itself.
func (b *testbed) entry(from hostName) string {
	if b.world.bridge != nil && isPod(from) {
		return bridgeName
	}
	h := b.host(from)
	for h.uplink != nil && h.uplink.uplink != nil {
		h = h.uplink
	}
	return h.attachment
}

// flush removes all entries of the node's connection tracking, so that earlier decisions do
// not affect later packets. Translated connections break.
func (b *testbed) flush() error {
	// This flushes all families: the kernel uses the family only in messages
	// of version 1.
	if err := b.node().Netlink().ConntrackTableFlush(conntrackTable); err != nil {
		return fmt.Errorf("flushing connection tracking of the node: %w", err)
	}
	return nil
}

// conntrackTable is the table of connections; another one has expectations.
const conntrackTable = 1
