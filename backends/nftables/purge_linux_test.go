package nftables

import (
	"errors"
	"fmt"
	"slices"
	"testing"
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
