package nftables

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A snapshot with so many Services and endpoints exceeds listLimit.
const services, hosts = 1600, 200

// bigSnapshot has many Services with the same endpoints, the first of which has the address
// first.
func bigSnapshot(first netip.Addr) proxy.Snapshot {
	pool := objects.Many(hosts, func(i int) *endpoints.Endpoint { return stagetest.Endpoint(v1.IPv4Protocol, 1000+i, 8080) })
	all := objects.Many(services, func(i int) *proxy.ServicePort { return stagetest.Port(v1.IPv4Protocol, i, 0) })
	for _, p := range all {
		p.Cluster = pool
	}
	pool[0].Addr = netip.AddrPortFrom(first, 8080)
	return proxy.NewSnapshot(stagetest.Node(), all...)
}

// table returns the only table for IPv4.
func (s *stage) table(t testing.TB) nfnetlink.Table {
	t.Helper()
	var all []nfnetlink.TableInfo
	testenv.NoError(t, s.conn(t).Tables(t.Context(), nfnetlink.IPv4, nfnetlink.Collect(&all)))
	if len(all) != 1 {
		t.Fatalf("tables: got %v, want one", all)
	}
	return nfnetlink.Table{Family: nfnetlink.IPv4, Name: all[0].Name}
}

// countElements counts the elements of a set.
func (s *stage) countElements(t testing.TB, set string) int {
	t.Helper()
	n := 0
	err := s.conn(t).Elements(t.Context(), s.table(t), set, nfnetlink.Visitor[nfnetlink.Element]{
		Begin: func() { n = 0 },
		Each: func(*nfnetlink.Element) error {
			n++
			return nil
		},
	})
	testenv.NoError(t, err)
	return n
}

// Tables that are too large to be listed are replaced by new ones.
func TestBigTablesAreReplaced(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.Apply(t, bigSnapshot(stagetest.HostIP(v1.IPv4Protocol, 1)))
	s.Restart(t)
	start := time.Now()
	s.Apply(t, bigSnapshot(stagetest.HostIP(v1.IPv4Protocol, 2)))
	t.Logf("%d services with %d endpoints each replaced in %v", services, hosts, time.Since(start).Round(time.Millisecond))
	if got := s.table(t).Name; got != "vipkit_2" {
		t.Errorf("serving table: got %s, want vipkit_2", got)
	}
	for set, want := range map[string]int{setServices: services, "endpoints": services * hosts, setHairpins: hosts, setClusterIPs: services} {
		if got := s.countElements(t, set); got != want {
			t.Errorf("elements of %s after the replacement: got %d, want %d", set, got, want)
		}
	}
	if got := s.slotsOf(t, "10.0.0.2"); got != services {
		t.Errorf("services with the endpoint of the new snapshot: got %d, want %d", got, services)
	}
	// The process that made the tables lists them to repair one removed element, and so
	// keeps all clients.
	s.nft(t, "delete", "element", "ip", "vipkit_2", setHairpins, "{ 10.0.0.2 . 10.0.0.2 }")
	before := s.Operations(t)
	start = time.Now()
	s.repair(t, s.Applied)
	t.Logf("one element repaired in %v", time.Since(start).Round(time.Millisecond))
	if got := s.Operations(t) - before; got != 1 {
		t.Errorf("operations of the repair: got %d, want 1", got)
	}
	s.counts(t, map[string]int{setServices: services, "endpoints": services * hosts, setHairpins: hosts, setClusterIPs: services})
}

// An element that a transaction removes or replaces needs its space until the end of the
// transaction.
func TestRoomInSets(t *testing.T) {
	t.Parallel()
	const free = 3
	do := func(kind backends.OpKind, n int) []op {
		return slices.Repeat([]op{{Kind: kind, Key: key{kind: kindClusterIP, fam: nfnetlink.IPv6, addr: [16]byte{0xfd}}}}, n)
	}
	for _, c := range []struct {
		name  string
		ops   []op
		after int
		room  bool
	}{
		{"as many as the set has room for", do(backends.Add, free), free, true},
		{"one too many", do(backends.Add, free+1), free + 1, false},
		{"one removed", append(do(backends.Remove, 1), do(backends.Add, free+1)...), free, false},
		{"replaced", do(backends.Replace, free), 0, true},
		{"replaced, one too many", do(backends.Replace, free+1), 0, false},
		{"removed", do(backends.Remove, free+1), -free - 1, true},
	} {
		var all tables
		all.fills.of(nfnetlink.IPv6)[atClusterIPs] = fill{count: leastSize - free, size: leastSize}
		counts, room := all.grow(c.ops)
		if got := counts.of(nfnetlink.IPv6)[atClusterIPs]; room != c.room || room && got != c.after {
			t.Errorf("%s: got room: %t, %d added, want room: %t, %d added", c.name, room, got, c.room, c.after)
		}
	}
}

// slotsOf counts the slots that have an endpoint.
func (s *stage) slotsOf(t *testing.T, addr string) int {
	t.Helper()
	n, want := 0, netip.MustParseAddr(addr).As4()
	err := s.conn(t).Elements(t.Context(), s.table(t), "endpoints", nfnetlink.Visitor[nfnetlink.Element]{
		Begin: func() { n = 0 },
		Each: func(e *nfnetlink.Element) error {
			if [4]byte(e.Data) == want {
				n++
			}
			return nil
		},
	})
	testenv.NoError(t, err)
	return n
}

// counts compares the numbers of elements of sets.
func (s *stage) counts(t *testing.T, want map[string]int) {
	t.Helper()
	for set, want := range want {
		if got := s.countElements(t, set); got != want {
			t.Errorf("elements of %s: got %d, want %d", set, got, want)
		}
	}
}

// The objects of one service port are divided, too, if they do not fit into a transaction.
func TestLargePortIsDivided(t *testing.T) {
	t.Parallel()
	s := newLimited(t, 16<<10)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node()))
	const many = 1000
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, many)))
	s.counts(t, map[string]int{setServices: 1, "endpoints": many, setHairpins: many})
}
