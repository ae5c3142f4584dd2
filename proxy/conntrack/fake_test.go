package conntrack

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

const protoTCP = protocol(ipaddr.TCP)

// wantFlows compares the flows that a table has.
func wantFlows(t *testing.T, table *fakeTable, want ...flow) {
	t.Helper()
	if diff := cmp.Diff(want, table.flows, cmpopts.EquateEmpty(), cmp.AllowUnexported(flow{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("flows left (-want +got):\n%s", diff)
	}
}

// fakeTable keeps flows in memory and counts the calls.
type fakeTable struct {
	flows          []flow
	dumps, removes int
	interrupts     int                // how many of the next dumps are interrupted
	err            error              // what remove returns
	failing        func(flow) bool    // for which flows; nil for all
	deaf           bool               // ignores filters, as old kernels do
	unlisted       error              // what localAddresses returns
	undumped       func(filter) error // returns the error of a dump
	removed        func()             // called after each removal
}

func (t *fakeTable) dump(f filter, visit func(flow)) error {
	t.dumps++
	if t.undumped != nil {
		if err := t.undumped(f); err != nil {
			return err
		}
	}
	for _, fl := range t.flows {
		if t.deaf || fl.proto == f.proto && ipaddr.FamilyOf(fl.dest.Addr()) == f.family {
			visit(fl)
		}
	}
	if t.interrupts > 0 {
		t.interrupts--
		return errInterrupted
	}
	return nil
}

func (t *fakeTable) remove(f flow) error {
	t.removes++
	if t.removed != nil {
		defer t.removed()
	}
	if t.err != nil && (t.failing == nil || t.failing(f)) {
		return t.err
	}
	t.flows = slices.DeleteFunc(t.flows, func(o flow) bool {
		return o.proto == f.proto && o.source == f.source && o.dest == f.dest && o.server == f.server
	})
	return nil
}

func (t *fakeTable) localAddresses() ([]netip.Addr, error) {
	return snapshots.Addrs("127.0.0.1", "192.0.2.1", "192.0.2.9", "2001:db8::1"), t.unlisted
}

func (t *fakeTable) close() error { return nil }

// to returns a flow of a client to an address, translated to server.
func to(proto protocol, dest, server string) flow {
	f := flow{proto: proto, source: netip.MustParseAddrPort("198.51.100.7:4000"), dest: netip.MustParseAddrPort(dest), server: netip.MustParseAddrPort(server)}
	if f.dest.Addr().Is6() {
		f.source = netip.MustParseAddrPort("[2001:db8::7]:4000")
	}
	return f
}

// port returns a service port with frontends, of which ":port" is a node port, and endpoints.
func port(name string, proto v1.Protocol, frontends, servers []string) *proxy.ServicePort {
	return snapshots.Port(name+"/"+string(proto), strings.Join(frontends, " "), servers...)
}

func node(nodePorts ...string) *proxy.Node {
	return &proxy.Node{ServiceCIDRs: snapshots.Prefixes("10.96.0.0/16"), NodePorts: proxy.NodePortAddresses{Prefixes: snapshots.Prefixes(nodePorts...)}}
}

func mustClean(t testing.TB, c *Cleaner, old, new proxy.Snapshot) {
	t.Helper()
	testenv.NoError(t, c.Clean(context.Background(), old, new))
}
