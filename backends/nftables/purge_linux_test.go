package nftables

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// hiding is an affinity map whose listings lack some of the clients.
type hiding struct {
	clients  map[string]bool
	others   int
	hidden   map[int][]string // by number of the listing
	listings int
}

func (h *hiding) list() (clients []string, all int, err error) {
	h.listings++
	for c := range h.clients {
		if !slices.Contains(h.hidden[h.listings], c) {
			clients = append(clients, c)
		}
	}
	return clients, h.others + len(clients), nil
}

func (h *hiding) remove(clients []string) error {
	for _, c := range clients {
		delete(h.clients, c)
	}
	return nil
}

// While many clients are added or removed, the kernel skips some clients in a listing, each
// time different ones. All clients that must be removed are removed all the same.
func TestSkippedClientsAreRemoved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		others   int
		hidden   map[int][]string
		listings int
	}{
		{"few", 10, nil, 2},
		{"many", 2 * onePart, nil, 3},
		{"the only one, at first", 2 * onePart, map[int][]string{1: {"a", "b"}}, 4},
		{"one of two, at first", 2 * onePart, map[int][]string{1: {"a"}}, 4},
		{"one of two, twice", 2 * onePart, map[int][]string{1: {"a"}, 2: {"a"}}, 5},
	} {
		h := &hiding{clients: map[string]bool{"a": true, "b": true}, others: c.others, hidden: c.hidden}
		if err := untilNone(h.list, h.remove); err != nil || len(h.clients) != 0 || h.listings != c.listings {
			t.Errorf("%s: got error %v, clients %v and %d listings, want no error, no clients and %d listings",
				c.name, err, h.clients, h.listings, c.listings)
		}
	}
}

// It is an error if clients are added as fast as they are removed, and if they cannot be
// listed or removed.
func TestClientsThatRemainAreAnError(t *testing.T) {
	t.Parallel()
	keep, listings := func([]string) error { return nil }, 0
	list := func() ([]string, int, error) {
		listings++
		return []string{fmt.Sprint(listings)}, 1, nil
	}
	if err := untilNone(list, keep); !errors.Is(err, errRefilled) || listings != purgeRounds {
		t.Errorf("after %d listings: got error %v, want %v after %d", listings, err, errRefilled, purgeRounds)
	}
	broken := errors.New("broken")
	if err := untilNone(func() ([]string, int, error) { return nil, 0, broken }, keep); !errors.Is(err, broken) {
		t.Errorf("listing fails: got error %v, want %v", err, broken)
	}
	if err := untilNone(list, func([]string) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("removal fails: got error %v, want %v", err, broken)
	}
}

// A client with the address of a removed endpoint and no port, as after the map of ports was
// full, is removed too: otherwise it would have affinity to the endpoint as soon as the map
// has the port.
func TestClientsWithoutPortAreRemoved(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	two := stickyPort(v1.IPv6Protocol, 0, 2)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), two))
	s.addClients(t, two, 4)
	ports := affinityPortMap(affinityMap(affinityID(two.Name), proxy.PoolCluster))
	s.nft(t, "flush", "map", "ip6", "vipkit", ports)
	one := *two
	one.Cluster = two.Cluster[1:]
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), &one))
	removed := two.Cluster[0].Addr.Addr().String()
	if got := s.clients(t, two); got[removed] != 0 || got[two.Cluster[1].Addr.Addr().String()] != 2 {
		t.Errorf("clients by endpoint: got %v, want two of the endpoint other than %s", got, removed)
	}
}

// If the send buffer is small, as in an unprivileged user namespace, the many clients of a
// removed endpoint are removed in several transactions.
func TestManyClientsAndASmallBuffer(t *testing.T) {
	t.Parallel()
	const clients = 3000
	for _, fam := range bothFamilies() {
		w := newWatched(t, listLimit)
		three := stickyPort(fam, 0, 3)
		w.Apply(t, proxy.NewSnapshot(stagetest.Node(), three))
		w.addClients(t, three, clients)
		w.kernel.Netlink.LimitBatch(3500)
		two := *three
		two.Cluster = three.Cluster[1:]
		want := map[string]int{}
		for _, e := range two.Cluster {
			want[e.Addr.Addr().String()] = clients / 3
		}
		w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &two))
		// While the kernel resizes a set, it lists some elements twice and others not at all.
		diff := cmp.Diff(want, w.clients(t, three))
		for end := time.Now().Add(10 * time.Second); diff != "" && time.Now().Before(end); diff = cmp.Diff(want, w.clients(t, three)) {
			time.Sleep(10 * time.Millisecond)
		}
		if diff != "" {
			t.Errorf("%s: clients by endpoint (-want +got):\n%s", fam, diff)
		}
	}
}
