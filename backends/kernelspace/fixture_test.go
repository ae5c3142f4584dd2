package kernelspace_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// newest, and noModify, are versions of HNS: of Windows Server 2025 and 2022.
var (
	errDenied = errors.New("access denied")
	nodeAddr  = netip.MustParseAddr("172.18.0.2")
	nodeAddr6 = netip.MustParseAddr("fd00:18::2")
)

func newest() hcn.Version     { return hcn.Version{Major: 16, Minor: 1} }
func noModify() hcn.Version   { return hcn.Version{Major: 12, Minor: 2} }
func server2019() hcn.Version { return hcn.Version{Major: 9, Minor: 5} }

const networkName = "l2bridge0"

// machine is a simulated HNS with a backend.
type machine struct {
	*hcntest.Sim
	t       *testing.T
	options kernelspace.Options
	network string
	backend proxy.Backend
	applied proxy.Snapshot
}

// newMachine makes an HNS with an L2Bridge network and pods 10.0.0.1 to 10.0.0.9 of this node.
func newMachine(t *testing.T, version hcn.Version) *machine {
	m := &machine{Sim: hcntest.New(version, nodeAddr), t: t}
	m.options = kernelspace.Options{
		Network: networkName, StateFile: filepath.Join(t.TempDir(), "state"),
		SourceVIPs: []netip.Addr{nodeAddr},
	}
	if !version.Features().DualStack {
		m.options.Families = []v1.IPFamily{v1.IPv4Protocol}
	}
	m.addNetwork(hcn.Network{Name: networkName, Type: "L2Bridge"})
	if _, err := m.Wait(t.Context()); err != nil { // nobody heard of it
		t.Fatal(err)
	}
	m.restart()
	t.Cleanup(m.check)
	return m
}

// addNetwork makes the network with the pods of this node.
func (m *machine) addNetwork(n hcn.Network) {
	m.network = m.AddNetwork(n)
	for i := 1; i <= 9; i++ {
		m.addPod(pod(i))
	}
}

func (m *machine) addPod(addresses ...netip.Addr) string {
	m.t.Helper()
	id, err := m.AddEndpoint(m.network, "pod", addresses...)
	testenv.NoError(m.t, err)
	return id
}

// restart makes a new backend, as a new process does.
func (m *machine) restart() {
	m.t.Helper()
	var err error
	if m.backend, err = kernelspace.New(m.Sim, m.options); err != nil {
		m.t.Fatal(err)
	}
	m.applied = proxy.Snapshot{}
}

// check checks that nothing was done that leaves HNS in a bad state.
func (m *machine) check() {
	for _, v := range m.Violations() {
		m.t.Errorf("violation: %s", v)
	}
}

// try applies service ports once.
func (m *machine) try(ports ...*proxy.ServicePort) error {
	return m.applySnapshot(proxy.NewSnapshot(theNode(), ports...))
}

func (m *machine) applySnapshot(s proxy.Snapshot) error {
	err := m.backend.Apply(m.t.Context(), m.applied, s)
	m.applied = m.applied.Achieved(s, err)
	return err
}

// apply applies service ports, and returns the number of calls.
func (m *machine) apply(ports ...*proxy.ServicePort) int {
	m.t.Helper()
	before := m.Total()
	if err := m.try(ports...); err != nil {
		m.t.Fatalf("Apply: %v", err)
	}
	return m.Total() - before
}

// fail has some methods fail a number of times, -1 for ever, and returns how often they failed.
func (m *machine) fail(times int, f hcntest.Fault, methods ...string) (failed func() int) {
	var n atomic.Int64
	m.SetFault(func(c hcntest.Call) hcntest.Fault {
		if !slices.Contains(methods, c.Method) || times >= 0 && n.Load() >= int64(times) {
			return hcntest.Fault{}
		}
		n.Add(1)
		return f
	})
	return func() int { return int(n.Load()) }
}

func denied() hcntest.Fault { return hcntest.Fault{Err: errDenied} }

// drifted reports whether the backend wants HNS listed again.
func (m *machine) drifted() bool {
	m.t.Helper()
	return m.backend.Abilities().Drifted(m.t.Context())
}

// waitDrift waits until the backend wants HNS listed again.
func (m *machine) waitDrift() error {
	return m.backend.Abilities().WaitDrift(m.t.Context())
}

// resync applies everything from the zero snapshot.
func (m *machine) resync() {
	m.t.Helper()
	s := m.applied
	m.applied = proxy.Snapshot{}
	if err := m.applySnapshot(s); err != nil {
		m.t.Fatalf("Apply from the zero snapshot: %v", err)
	}
}

// want compares the dump.
func (m *machine) want(when string, lines ...string) {
	m.t.Helper()
	slices.Sort(lines)
	if got, want := m.Dump(), strings.Join(lines, "\n"); got != want {
		m.t.Errorf("%s: dump:\n%s\nwant\n%s", when, got, want)
	}
}

func theNode() *proxy.Node {
	return &proxy.Node{Name: "node-1", Addresses: []netip.Addr{nodeAddr, nodeAddr6}, NodePorts: proxy.NodePortAddresses{All: true}}
}

// pod is the address of a pod of this node, elsewhere that of one of node-2.
func pod(i int) netip.Addr       { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
func elsewhere(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}) }

func local(i int) *endpoints.Endpoint {
	return snapshots.Endpoints(pod(i).String() + " @node-1 local")[0]
}

func remote(i int) *endpoints.Endpoint {
	return snapshots.Endpoints(elsewhere(i).String() + " @node-2")[0]
}

func on(node string, e *endpoints.Endpoint) *endpoints.Endpoint {
	c := *e
	c.NodeName = node
	return &c
}

func at(port uint16, e *endpoints.Endpoint) *endpoints.Endpoint {
	c := *e
	c.Addr = netip.AddrPortFrom(e.Addr.Addr(), port)
	return &c
}

// service makes service port i with a ClusterIP.
func service(i int, list ...*endpoints.Endpoint) *proxy.ServicePort {
	p := snapshots.Port(fmt.Sprint("service-", i), "")
	p.Cluster, p.HasEndpoints = slices.SortedFunc(slices.Values(list), (*endpoints.Endpoint).Compare), true
	return with(p, frontend(proxy.ClusterIP, clusterIP(i).String(), 80))
}

func clusterIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) }

func frontend(kind proxy.FrontendKind, addr string, port uint16) proxy.Frontend {
	return proxy.Frontend{Kind: kind, Addr: netip.AddrPortFrom(netip.MustParseAddr(addr), port)}
}

// with returns a port with further frontends, which forward to the pool Cluster if it has endpoints.
func with(p *proxy.ServicePort, all ...proxy.Frontend) *proxy.ServicePort {
	return snapshots.With(p, func(p *proxy.ServicePort) {
		for _, f := range all {
			if f.FromInside.Action == proxy.Pass {
				if f.FromInside.Action = proxy.Forward; len(p.Cluster) == 0 {
					f.FromInside.Action = proxy.Reject
				}
				f.FromOutside = f.FromInside
			}
			p.Frontends = append(p.Frontends, f)
		}
	})
}

func nameOf(name string) types.NamespacedName { return objects.Name("test/" + name) }

func sticky(p *proxy.ServicePort) *proxy.ServicePort {
	return snapshots.With(p, func(p *proxy.ServicePort) { p.Affinity = affinity.Config{Timeout: affinity.DefaultTimeout} })
}

func annotated(p *proxy.ServicePort, key, value string) *proxy.ServicePort {
	return snapshots.With(p, func(p *proxy.ServicePort) { p.Annotations = map[string]string{key: value} })
}

// failing is a context that has ended.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
