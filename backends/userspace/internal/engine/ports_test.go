package engine

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestPortsAreLentOncePerPath(t *testing.T) {
	t.Parallel()
	const first, count = 10_000, 50
	p := NewPorts(first, count, 12_345)
	paths := []Path{{To: memoryEndpoint}, {To: netip.MustParseAddrPort("10.0.0.5:8081")}, {From: alice, To: memoryEndpoint}}
	lent := map[Path]map[uint16]bool{}
	for _, on := range paths {
		lent[on] = map[uint16]bool{}
	}
	random := testenv.Random(t)
	for range 20_000 {
		on := paths[random.IntN(len(paths))]
		if random.IntN(5) < 2 {
			for port := range lent[on] {
				p.Give(on, port)
				delete(lent[on], port)
				break
			}
			continue
		}
		port, err := p.Take(on)
		switch {
		case len(lent[on]) == count:
			if !errors.Is(err, ErrNoPort) {
				t.Fatalf("with all ports lent, got port %d and error %v, want %v", port, err, ErrNoPort)
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
			p.Give(on, port)
		}
	}
	if len(p.lent) != 0 {
		t.Errorf("paths after all ports were returned: got %d, want none", len(p.lent))
	}
}

// A port that was returned is not the next one to be lent: answers to its last flow may still
// arrive.
func TestReturnedPortsAreNotLentNext(t *testing.T) {
	t.Parallel()
	p := NewPorts(1, 100, 0)
	on := Path{To: memoryEndpoint}
	for range 2 {
		seen := map[uint16]bool{}
		for range 99 {
			port, err := p.Take(on)
			if err != nil || seen[port] {
				t.Fatalf("got port %d, error %v, after %d others; want another one", port, err, len(seen))
			}
			seen[port] = true
			p.Give(on, port)
		}
	}
}

// Neighbouring ports, which other programs may use, are not lent one after the other.
func TestPortsAreFarApart(t *testing.T) {
	t.Parallel()
	for _, count := range []uint16{1, 2, 3, 7, 64, 1000, 20_000, 65_535} {
		p := NewPorts(0, count, 77)
		on, seen := Path{To: memoryEndpoint}, map[uint16]bool{}
		last := -1
		for range count {
			port, err := p.Take(on)
			if err != nil || seen[port] || port >= count {
				t.Fatalf("%d ports, after %d of them: got port %d and error %v, want another port", count, len(seen), port, err)
			}
			seen[port] = true
			if apart := max(int(port)-last, last-int(port)); count >= 1000 && last >= 0 && apart < int(count)/4 {
				t.Fatalf("%d ports: got %d after %d, want ports far apart", count, port, last)
			}
			last = int(port)
		}
	}
}

// Ports are lent again only after all ports have been lent once, in the order of their return.
func TestPortsAreReusedInOrder(t *testing.T) {
	t.Parallel()
	p, on := NewPorts(1, 10, 0), Path{To: memoryEndpoint}
	take := func() uint16 {
		t.Helper()
		port, err := p.Take(on)
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
		p.Give(on, port)
	}
	for _, want := range back {
		if got := take(); got != want {
			t.Errorf("got port %d, want %d, which was returned first", got, want)
		}
	}
}
