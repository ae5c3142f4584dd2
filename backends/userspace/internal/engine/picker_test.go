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

// A connection that does not come about has an error: no endpoint is reached, the client is gone, or the header of the
// PROXY protocol cannot be sent.
func TestFailedFlows(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		dial   error
		closed bool
		want   error
	}{
		"no endpoint":     {dial: refused, want: refused},
		"closed client":   {closed: true, want: errClosed},
		"no proxy header": {want: io.ErrClosedPipe},
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
		err := w.establish(link, Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", name, err, c.want)
		}
		shut(near)
		shut(far)
	}
}
