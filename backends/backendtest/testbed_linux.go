package backendtest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/cluster"
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

// testbed is the cluster of package cluster in a [world], with real servers. nodeTowards says which
// source addresses the node selects.
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
	cluster.Host
	ns *netns.NS
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

// setUpIn returns the testbed of a world, which ends with the test.
func setUpIn(t testing.TB, w world) *testbed {
	t.Helper()
	b := &testbed{world: w, lab: lab.New(t)}
	for _, h := range cluster.Hosts() {
		h.Addrs = slices.DeleteFunc(h.Addrs, func(a netip.Addr) bool { return !w.has(a) })
		added := &host{Host: h, ns: b.lab.Add(w.plan(h))}
		b.hosts = append(b.hosts, added)
		if h.Name == cluster.RemoteNode && w.tunnelMTU > 0 {
			testenv.NoError(t, b.addTunnel(added))
		}
	}
	testenv.NoError(t, b.addIdle())
	for _, s := range cluster.Servers() {
		for _, port := range s.Ports {
			b.lab.Serve(string(s.At), s.Name, port)
		}
	}
	b.configureWorld(t)
	return b
}

// plan returns how a host is built in the world.
func (w *world) plan(h cluster.Host) lab.Host {
	p := cluster.Plan(h, false)
	switch {
	case h.Name == cluster.Node:
		p.Sysctls = w.sysctls
	case h.Name == cluster.RemoteNode && w.tunnelMTU > 0:
		p.Behind = ""
	}
	switch {
	case w.bridge != nil && cluster.IsPod(h.Name):
		p.Bridge, p.Hairpin, p.Gateway = bridgeName, w.bridge.hairpin, cluster.Texts(bridgeAddrs())
		p.Addrs = strings.NewReplacer("/32", "/24", "/128", "/64").Replace(p.Addrs)
	case h.Uplink == cluster.Node && !cluster.IsPod(h.Name):
		p.Gateway = cluster.Texts(w.addrsAt(h.Link))
	}
	return p
}

// host returns a host of the testbed; nil if there is none of that name.
func (b *testbed) host(at cluster.Name) *host {
	i := slices.IndexFunc(b.hosts, func(h *host) bool { return h.Name == at })
	if i < 0 {
		return nil
	}
	return b.hosts[i]
}

// node returns the namespace of the node.
func (b *testbed) node() *netns.NS { return b.host(cluster.Node).ns }

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
	return b.host(cluster.Node).Addr(ipaddr.FamilyOf(to))
}

// entry returns the interface of the node that receives packets from a host; empty for
// the node itself.
func (b *testbed) entry(from cluster.Name) string {
	if b.world.bridge != nil && cluster.IsPod(from) {
		return bridgeName
	}
	return cluster.Entry(from)
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
