package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// memoryAt returns the n-th of the endpoints of a test.
func memoryAt(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}), 8080)
}

// memoryPool returns the endpoints with some numbers.
func memoryPool(numbers ...int) (all []netip.AddrPort) {
	for _, n := range numbers {
		all = append(all, memoryAt(n))
	}
	return all
}

// withoutSockets returns a fixture that reaches every endpoint.
func withoutSockets(t *testing.T) *fixture {
	return newFixture(t, Config{Hooks: Hooks{
		Dial: func(context.Context, Dial) (net.Conn, error) { return newFakeSocket(), nil },
	}}, v1.ProtocolTCP)
}

// chosen returns the number of the endpoint that the next connection of a client gets.
func (w *fixture) chosen(t *testing.T, client string) int {
	t.Helper()
	f := Flow{Protocol: w.port.Name.Protocol, Client: netip.MustParseAddrPort(client), Frontend: memoryFrontend}
	d := w.decide(f)
	conn, to, err := w.connect(t.Context(), &d)
	testenv.NoError(t, err)
	shut(conn)
	return int(to.Addr.Addr().As4()[3])
}

// A change of the endpoints does not restart the round: the next one is the one after the last.
func TestRoundsGoOn(t *testing.T) {
	t.Parallel()
	w := withoutSockets(t)
	w.serveAt(memoryFrontend, memoryPool(1, 3, 5, 7)...)
	for turns := 1; w.chosen(t, "10.0.0.9:1") != 3; turns++ { // the first choice is random
		if turns == 4 {
			t.Fatal("endpoint 3 of four had no turn in four")
		}
	}
	for _, step := range []struct{ pool, want []int }{
		{[]int{1, 3, 5, 7}, []int{5, 7, 1, 3, 5}},
		{[]int{1, 3, 7}, []int{7, 1, 3}},
		{[]int{1, 4, 7}, []int{4, 7, 1}},
		{[]int{2, 4, 7}, []int{2, 4}},
		{[]int{1, 2}, []int{1, 2, 1}},
		{[]int{9}, []int{9, 9}},
	} {
		w.serveAt(memoryFrontend, memoryPool(step.pool...)...)
		var got []int
		for range step.want {
			got = append(got, w.chosen(t, "10.0.0.9:1"))
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("endpoints %v: got %v, want %v", step.pool, got, step.want)
		}
	}
}

// While endpoints come and go, each one that stays gets its turn: between two of its turns, no
// other one has two.
func TestRoundsAreFair(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	w := withoutSockets(t)
	have := map[int]bool{1: true, 2: true, 3: true}
	since := map[int]map[int]bool{} // by endpoint: which others had a turn since its own
	for range 2000 {
		if n := 1 + r.IntN(12); r.IntN(3) == 0 && (len(have) > 1 || !have[n]) {
			if have[n] = !have[n]; !have[n] {
				delete(have, n)
			}
			delete(since, n)
		}
		var pool []int
		for n := range have {
			pool = append(pool, n)
		}
		w.serveAt(memoryFrontend, memoryPool(pool...)...)
		n := w.chosen(t, "10.0.0.9:1")
		for other := range have {
			if other == n || since[other] == nil {
				continue
			}
			if since[other][n] {
				t.Fatalf("endpoint %d: got a second turn before that of %d", n, other)
			}
			since[other][n] = true
		}
		since[n] = map[int]bool{}
		for _, seen := range since { // one that has left begins again
			for gone := range seen {
				if !have[gone] {
					delete(seen, gone)
				}
			}
		}
	}
}

// An endpoint that failed is tried last, and does not stop the round of the others.
func TestRoundsAvoidFailures(t *testing.T) {
	t.Parallel()
	refusing := memoryAt(2)
	w := newFixture(t, Config{Hooks: Hooks{Dial: func(_ context.Context, d Dial) (net.Conn, error) {
		if d.To == refusing {
			return nil, errors.New("refused")
		}
		return newFakeSocket(), nil
	}}}, v1.ProtocolTCP)
	w.serveAt(memoryFrontend, memoryPool(1, 2, 3)...)
	count := map[int]int{}
	for range 20 {
		count[w.chosen(t, "10.0.0.9:1")]++
	}
	if count[2] != 0 || count[1] < 8 || count[3] < 8 {
		t.Errorf("got choices %v, want 1 and 3 in turn", count)
	}
}

// A client with session affinity uses no turn after its first one.
func TestAffinityUsesNoTurn(t *testing.T) {
	t.Parallel()
	w := withoutSockets(t).withAffinity(time.Hour)
	w.serveAt(memoryFrontend, memoryPool(1, 2, 3)...)
	first := w.chosen(t, "10.0.0.9:1")
	for range 5 {
		if got := w.chosen(t, "10.0.0.9:1"); got != first {
			t.Fatalf("got endpoint %d, want %d again", got, first)
		}
	}
	if got, want := w.chosen(t, "10.0.0.8:1"), first%3+1; got != want {
		t.Errorf("another client: got endpoint %d, want %d", got, want)
	}
}

// A flow that does not come about has no service: no endpoint is reached, the client is gone, or
// the header of the PROXY protocol cannot be sent.
func TestFailedFlows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dial   error
		closed bool
	}{
		"no endpoint":     {dial: errors.New("refused")},
		"closed client":   {closed: true},
		"no proxy header": {},
	} {
		w := newFixture(t, Config{Hooks: Hooks{
			Dial:          func(context.Context, Dial) (net.Conn, error) { return newFakeSocket(io.ErrClosedPipe), c.dial },
			ProxyProtocol: func(proxy.ServicePortName) int { return 1 },
		}}, v1.ProtocolTCP)
		w.serveAt(memoryFrontend, memoryEndpoint)
		near, far := net.Pipe()
		link := &connection{client: near}
		if c.closed {
			shut(link)
		}
		s, err := w.establish(link, Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
		if s != nil || c.closed != (err == nil) {
			t.Errorf("%s: got a connection: %v, and error %v, want none, and an error unless the client is gone", name, s != nil, err)
		}
		shut(near)
		shut(far)
	}
}

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
