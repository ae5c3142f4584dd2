package nftables

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// betweenTransactions has clients of a service port connect after each transaction as long as
// it has more than some slots of endpoints, and the kernel refuse one transaction.
type betweenTransactions struct {
	*watched
	port      *proxy.ServicePort
	slots     int
	refused   int // the number of the transaction, from 1
	connected int
	met       int
}

func (b *betweenTransactions) install(t *testing.T) {
	c, table := b.conn(t), nfnetlink.Table{Family: nft.FamilyOf(b.port.Name.Family), Name: "vipkit"}
	transact := b.kernel.Transact
	b.kernel.Transact = func(ctx context.Context, batch *nfnetlink.Batch) error {
		if b.met++; b.met == b.refused {
			return &nfnetlink.Error{Errno: unix.EINVAL, Op: "add element"}
		}
		err := transact(ctx, batch)
		var slots, maps int
		all := nfnetlink.Visitor[nfnetlink.SetInfo]{Each: func(s *nfnetlink.SetInfo) error {
			if strings.HasPrefix(s.Name, affinityMap(affinityID(b.port.Name), proxy.PoolCluster)) {
				maps++
			}
			return nil
		}}
		count := nfnetlink.Visitor[nfnetlink.Element]{Each: func(e *nfnetlink.Element) error {
			if to := bytesOf(table.Family, b.port.Frontends[0].Addr.Addr()); strings.HasPrefix(string(e.Key), string(to[:table.Family.AddrLen()])) {
				slots++
			}
			return nil
		}}
		if err := errors.Join(c.Sets(ctx, table, all), c.Elements(ctx, table, endpointsMap(proxy.PoolCluster, false), count)); err != nil {
			t.Error(err)
		}
		if err == nil && slots > b.slots && maps == len(affinitySets(table.Family, "")) {
			b.addClients(t, b.port, len(b.port.Cluster))
			b.connected++
		}
		return err
	}
}

// A change may take several transactions. Clients that connect between them, and get affinity
// to an endpoint that a later one removes, lose it: if the Service has had affinity before, if
// affinity begins with the change, and if the kernel refuses one of the transactions, so that
// the change is reverted and divided. Another service port grows in the same change.
func TestClientsBetweenTransactions(t *testing.T) {
	t.Parallel()
	const most, kept = 60, 2
	for _, fam := range bothFamilies() {
		for _, before := range []bool{false, true} {
			for refused := range 8 {
				t.Run(fmt.Sprintf("%s, affinity before: %t, refused: %d", fam, before, refused), func(t *testing.T) {
					t.Parallel()
					b := &betweenTransactions{watched: newWatched(t, listLimit), port: stickyPort(fam, 0, most), slots: kept, refused: refused}
					old, few := *b.port, *b.port
					if !before {
						old = *stagetest.Port(fam, 0, most)
					}
					few.Cluster = b.port.Cluster[:kept]
					b.Apply(t, proxy.NewSnapshot(stagetest.Node(), &old, stagetest.Port(fam, 1, kept)))
					b.kernel.Netlink.LimitBatch(3500)
					b.install(t)
					next := proxy.NewSnapshot(stagetest.Node(), &few, stagetest.Port(fam, 1, most))
					err := b.Backend.Apply(t.Context(), b.Applied, next)
					if b.Applied = b.Applied.Achieved(next, err); err != nil {
						b.Apply(t, next)
					}
					if b.connected == 0 || refused > b.met {
						t.Fatalf("got clients after %d of %d transactions, so the test shows nothing", b.connected, b.met)
					}
					for endpoint, n := range b.clients(t, &few) {
						if endpoint != few.Cluster[0].Addr.Addr().String() && endpoint != few.Cluster[1].Addr.Addr().String() {
							t.Errorf("clients with affinity to %s, which was removed: got %d, want none", endpoint, n)
						}
					}
				})
			}
		}
	}
}

// connecting has clients of a service port connect before each transaction, as long as a serving
// table has its last endpoint: they get affinity in all serving tables.
type connecting struct {
	*watched
	conn      *nfnetlink.Conn
	port      *proxy.ServicePort
	connected int
	// refused is the number of tries to remove a table that the kernel refuses.
	refused int
}

func (c *connecting) install(t *testing.T) {
	transact := c.kernel.Transact
	c.kernel.Transact = func(ctx context.Context, b *nfnetlink.Batch) error {
		serving := c.serving(t)
		for _, table := range serving {
			if c.hasMap(t, table) {
				addClientsTo(t, c.conn, table, c.port, len(c.port.Cluster))
				c.connected++
			}
		}
		if len(serving) == 2 && c.refused > 0 {
			c.refused--
			return &nfnetlink.Error{Errno: unix.ENOMEM, Op: "delete table"}
		}
		return transact(ctx, b)
	}
}

// hasMap reports whether a table has the affinity map of the service port.
func (c *connecting) hasMap(t *testing.T, table string) bool {
	var all []nfnetlink.SetInfo
	err := c.conn.Sets(t.Context(), nfnetlink.Table{Family: nft.FamilyOf(c.port.Name.Family), Name: table}, nfnetlink.Collect(&all))
	if err != nil {
		t.Error(err)
	}
	return slices.ContainsFunc(all, func(s nfnetlink.SetInfo) bool {
		return s.Name == affinityMap(affinityID(c.port.Name), proxy.PoolCluster)
	})
}

// serving returns the names of the tables that serve, if one of them has the last endpoint.
func (c *connecting) serving(t *testing.T) (names []string) {
	fam, last := nft.FamilyOf(c.port.Name.Family), c.port.Cluster[len(c.port.Cluster)-1].Addr
	found := false
	for _, name := range []string{"vipkit", "vipkit_2"} {
		table := nfnetlink.Table{Family: fam, Name: name}
		var chains []nfnetlink.Chain
		if err := c.conn.Chains(t.Context(), table, nfnetlink.Collect(&chains)); err != nil {
			t.Error(err)
		}
		if !slices.Contains(chains, c.kernel.options.baseChains()[0]) {
			continue
		}
		names = append(names, name)
		err := c.conn.Elements(t.Context(), table, endpointsMap(proxy.PoolCluster, false), nfnetlink.Visitor[nfnetlink.Element]{
			Each: func(e *nfnetlink.Element) error {
				of := slot{addr: bytesOf(fam, last.Addr()), port: last.Port()}
				found = found || strings.HasPrefix(string(e.Data), string(of.append(nil, fam)))
				return nil
			},
		})
		if err != nil {
			t.Error(err)
		}
	}
	if !found {
		return nil
	}
	return names
}

// A process that does not know the state of the tables lists them, or makes new ones. Clients
// that connect meanwhile, and get affinity to an endpoint that is then removed, lose it.
func TestClientsBeforeACommitOfUnknownState(t *testing.T) {
	t.Parallel()
	for _, fam := range bothFamilies() {
		for name, c := range map[string]struct {
			limit, refused int
			begins         bool // affinity begins with the change
		}{
			"listed": {limit: listLimit}, "replaced": {limit: 0}, "replaced, old tables stay": {limit: 0, refused: 2},
			"affinity begins": {limit: listLimit, begins: true}, "affinity begins in new tables": {limit: 0, begins: true},
		} {
			t.Run(fmt.Sprintf("%s, %s", fam, name), func(t *testing.T) {
				t.Parallel()
				w := newWatched(t, c.limit)
				three := stickyPort(fam, 0, 3)
				two := *three
				two.Cluster = three.Cluster[:2]
				before := *three
				if c.begins {
					before.Affinity = affinity.Config{}
				}
				w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &before))
				w.kernel.verified = false
				of := &connecting{watched: w, conn: w.conn(t), port: three, refused: c.refused}
				of.install(t)
				want := proxy.NewSnapshot(stagetest.Node(), &two)
				for range 1 + c.refused {
					if err := w.Backend.Apply(t.Context(), proxy.Snapshot{}, want); err != nil {
						t.Logf("Apply: %v", err)
					}
				}
				left := of.serving(t)
				if of.connected == 0 || of.refused > 0 || len(left) > 0 {
					t.Fatalf("got clients %d times, %d refusals left, and %q still serve, so the test shows nothing", of.connected, of.refused, left)
				}
				clients := clientsIn(t, of.conn, w.kernel.tables.table(nft.FamilyOf(fam)).Name, three)
				delete(clients, two.Cluster[0].Addr.Addr().String())
				delete(clients, two.Cluster[1].Addr.Addr().String())
				if len(clients) > 0 {
					t.Errorf("clients with affinity to a removed endpoint: got %v, want none", clients)
				}
			})
		}
	}
}

// A packet that the kernel evaluates during a commit, and until after its purge, may give its client
// affinity to an endpoint that the commit removes. The client loses it before Apply returns.
func TestClientsOfSlowPackets(t *testing.T) {
	t.Parallel()
	for _, fam := range bothFamilies() {
		w := newWatched(t, listLimit)
		three := stickyPort(fam, 0, 3)
		two := *three
		two.Cluster = three.Cluster[:2]
		w.Apply(t, proxy.NewSnapshot(stagetest.Node(), three))
		waited := 0
		w.kernel.Await = func() {
			w.addClients(t, three, 3)
			waited++
			nft.AwaitPackets()
		}
		w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &two))
		clients := w.clients(t, three)
		if removed := three.Cluster[2].Addr.Addr().String(); waited != 1 || len(clients) != 2 || clients[removed] != 0 {
			t.Errorf("%s: clients after a wait for packets: got %v after %d, want none of %s after 1", fam, clients, waited, removed)
		}
	}
}

// Clients may have affinity to an endpoint that left an affinity map, and in a new map to any
// endpoint of the family that is not in it, if the family loses endpoints, or another commit was carried out in
// part. They cannot in a removed map.
func TestMapsToPurge(t *testing.T) {
	t.Parallel()
	ip4, ip6 := slot{port: 4}, slot{port: 6}
	set := func(fam nfnetlink.Family, name string) key { return key{kind: kindSet, fam: fam, name: handleOf(name)} }
	sticky := func(fam nfnetlink.Family, name string, to slot) key { return stickyKey(fam, handleOf(name), to) }
	endpoint := func(fam nfnetlink.Family, to slot) key {
		return key{kind: kindEndpoint, fam: fam, port: 80, eport: to.port}
	}
	const v4, v6, add, remove = nfnetlink.IPv4, nfnetlink.IPv6, backends.Add, backends.Remove
	begins := []op{{Kind: add, Key: set(v4, "m")}, {Kind: add, Key: set(v4, "sources")}, {Kind: add, Key: sticky(v4, "m", ip4)}}
	loses := []op{{Kind: remove, Key: endpoint(v4, ip4)}}
	leaves := []op{{Kind: remove, Key: sticky(v4, "m", ip4)}, {Kind: remove, Key: endpoint(v4, ip4)}}
	ends := []op{{Kind: remove, Key: sticky(v4, "m", ip4)}, {Kind: remove, Key: set(v4, "m")}}
	m := map[key]bool{set(v4, "m"): true}
	for _, c := range []struct {
		name string
		// beside and halfway are the state before the last commit, whole says that all of it is carried out.
		beside, halfway, whole bool
		before, ops            []op
		want                   map[key]bool
	}{
		{"no affinity", false, false, true, nil, append([]op{{Kind: add, Key: set(v4, "sources")}}, loses...), nil},
		{"an endpoint leaves", false, false, true, begins, leaves, m},
		{"an endpoint leaves in a part of a commit", false, false, false, begins, leaves, m},
		{"affinity ends", false, false, true, begins, ends, nil},
		{"an endpoint joins", false, false, true, begins, append([]op{{Kind: add, Key: sticky(v4, "m", ip6)}}, loses...), nil},
		{"affinity begins", false, false, true, nil, begins, nil},
		{"affinity begins, and the family loses an endpoint", false, false, true, nil, slices.Concat(begins, loses), m},
		{"affinity begins, and the other family loses an endpoint", false, false, true, nil, append(slices.Clone(begins), op{Kind: remove, Key: endpoint(v6, ip6)}), nil},
		{"affinity begins in a part of a commit", false, false, false, nil, begins, m},
		{"affinity begins after a part of a commit", false, true, true, nil, begins, m},
		{"affinity begins beside earlier objects", true, false, true, nil, begins, nil},
		{"affinity begins beside earlier objects, of which some are removed", true, false, true, nil, slices.Concat(begins, ends[1:], begins, loses), m},
		{"affinity begins in one map and ends in another", false, false, true, begins, append([]op{
			{Kind: add, Key: set(v6, "n")}, {Kind: add, Key: sticky(v6, "n", ip6)}, {Kind: remove, Key: endpoint(v6, ip4)},
		}, ends...), map[key]bool{set(v6, "n"): true}},
	} {
		var a affinityState
		a.note(c.before, true)
		a.beside, a.halfway = c.beside, c.halfway
		a.note(c.ops, c.whole)
		testenv.Same(t, fmt.Sprint(c.want), fmt.Sprint(a.toPurge()), "%s: maps to purge", c.name)
	}
}

// Services with affinity replace as many others. The memory that this takes grows with their
// number, and not with its square.
func TestManyNewAffinityMaps(t *testing.T) {
	s := newStage(t)
	replaced := func(first, n int) (allocated uint64) {
		ports := make([]*proxy.ServicePort, n)
		for i := range ports {
			ports[i] = stickyPort(v1.IPv4Protocol, first+i, 20)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), ports...))
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	const few, times = 40, 4
	replaced(0, few)
	small := replaced(few, few)
	replaced(1000, times*few)
	large := replaced(2000, times*few)
	if large > 2*times*small {
		t.Errorf("memory for %d times as many services: got %d kB, want at most %d kB, twice %d times %d kB",
			times, large>>10, 2*times*small>>10, times, small>>10)
	}
}
