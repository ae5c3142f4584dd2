package netfilter

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestPortsAreLentOncePerPath(t *testing.T) {
	t.Parallel()
	endpoint := netip.MustParseAddrPort("10.0.0.5:8080")
	const first, count = 10_000, 50
	p := newPorts(first, count)
	paths := []path{{to: endpoint}, {to: netip.MustParseAddrPort("10.0.0.5:8081")}, {from: netip.MustParseAddr("10.0.0.1"), to: endpoint}}
	lent := map[path]map[uint16]bool{}
	for _, on := range paths {
		lent[on] = map[uint16]bool{}
	}
	random := testenv.Random(t)
	for range 20_000 {
		on := paths[random.IntN(len(paths))]
		if random.IntN(5) < 2 {
			for port := range lent[on] {
				p.give(on, port)
				delete(lent[on], port)
				break
			}
			continue
		}
		port, err := p.take(on)
		switch {
		case len(lent[on]) == count:
			if !errors.Is(err, engine.ErrNoPort) {
				t.Fatalf("with all ports lent, got port %d and error %v, want %v", port, err, engine.ErrNoPort)
			}
			continue
		case err != nil:
			t.Fatalf("with %d of %d ports lent, got error %v", len(lent[on]), count, err)
		case port < first || port >= first+count || lent[on][port]:
			t.Fatalf("got port %d, want one of %d to %d that is not lent", port, first, first+count-1)
		}
		lent[on][port] = true
	}
	for _, on := range paths {
		for port := range lent[on] {
			p.give(on, port)
		}
	}
	if len(p.lent) != 0 {
		t.Errorf("paths after all ports were returned: got %d, want none", len(p.lent))
	}
}

// Ports are lent in turn: a port is lent again only after all others.
func TestPortsAreReusedInOrder(t *testing.T) {
	t.Parallel()
	p, on := newPorts(1, 10), path{to: netip.MustParseAddrPort("10.0.0.5:8080")}
	take := func() uint16 {
		t.Helper()
		port, err := p.take(on)
		testenv.NoError(t, err)
		return port
	}
	take() // not returned, so that the path is kept
	var back []uint16
	for range 9 {
		port := take()
		if slices.Contains(back, port) {
			t.Fatalf("got port %d again, want one that was never lent", port)
		}
		back = append(back, port)
		p.give(on, port)
	}
	for _, want := range back {
		if got := take(); got != want {
			t.Errorf("got port %d, want %d, which was returned first", got, want)
		}
	}
}
