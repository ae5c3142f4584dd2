package nftables

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// hiding is a map of clients in which single looks do not find some of those that
// are searched for, and of which none may be removed.
type hiding struct {
	clients map[string]bool
	others  int
	hidden  map[int][]string // by look
	looks   int
}

func (h *hiding) look() (clients []string, all int, err error) {
	h.looks++
	for c := range h.clients {
		if !slices.Contains(h.hidden[h.looks], c) {
			clients = append(clients, c)
		}
	}
	return clients, h.others + len(clients), nil
}

func (h *hiding) forget(clients []string) error {
	for _, c := range clients {
		delete(h.clients, c)
	}
	return nil
}

// While many come or go, the kernel passes clients over, each time others: none of
// those that must be forgotten stays for that.
func TestClientsPassedOverAreForgotten(t *testing.T) {
	for _, c := range []struct {
		name   string
		others int
		hidden map[int][]string
		looks  int
	}{
		{"few", 10, nil, 2},
		{"many", 2 * onePart, nil, 3},
		{"the only one, at first", 2 * onePart, map[int][]string{1: {"a", "b"}}, 4},
		{"one of two, at first", 2 * onePart, map[int][]string{1: {"a"}}, 4},
		{"one of two, twice", 2 * onePart, map[int][]string{1: {"a"}, 2: {"a"}}, 5},
	} {
		h := &hiding{clients: map[string]bool{"a": true, "b": true}, others: c.others, hidden: c.hidden}
		if err := untilGone(h.look, h.forget); err != nil || len(h.clients) != 0 || h.looks != c.looks {
			t.Errorf("%s: got error %v, clients %v and %d looks, want none left and %d looks", c.name, err, h.clients, h.looks, c.looks)
		}
	}
}

// Clients that come as fast as they are removed are an error in the end, and so is
// that they cannot be seen or removed.
func TestClientsThatStayAreAnError(t *testing.T) {
	stay, looks := func([]string) error { return nil }, 0
	seen := func() ([]string, int, error) {
		looks++
		return []string{fmt.Sprint(looks)}, 1, nil
	}
	if err := untilGone(seen, stay); !errors.Is(err, errComeBack) || looks != purgeRounds {
		t.Errorf("after %d looks: got error %v, want %v after %d", looks, err, errComeBack, purgeRounds)
	}
	broken := errors.New("broken")
	if err := untilGone(func() ([]string, int, error) { return nil, 0, broken }, stay); !errors.Is(err, broken) {
		t.Errorf("nobody can be seen: got error %v, want %v", err, broken)
	}
	if err := untilGone(seen, func([]string) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("nobody can be removed: got error %v, want %v", err, broken)
	}
}

// A client of which the address of its endpoint is noted, but not the port, as when
// that map was full, forgets the endpoint with it: else it would stick to it once the
// port is noted.
func TestClientsWithoutPortForget(t *testing.T) {
	s := newStage(t, Options{})
	two := stickyPort(v1.IPv6Protocol, 0, 2)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), two))
	s.addClients(t, two, 4)
	ports := affinityPortMap(affinityMap(affinityID(two.Name), proxy.PoolCluster))
	var b nfnetlink.Batch
	b.FlushSet(nfnetlink.Table{Family: nfnetlink.IPv6, Name: "vipkit"}, ports)
	if err := s.conn(t).Commit(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	one := *two
	one.Cluster = two.Cluster[1:]
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), &one))
	gone := two.Cluster[0].Addr.Addr().String()
	if got := s.clients(t, two); got[gone] != 0 || got[two.Cluster[1].Addr.Addr().String()] != 2 {
		t.Errorf("clients by endpoint: got %v, want two of the other one than %s", got, gone)
	}
}
