package userspace_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// rangesFixture is a network, with a client that has many addresses, for Services with source
// ranges in each family, for TCP and for UDP.
type rangesFixture struct {
	network
	random   *rand.Rand
	families []*rangedFamily
	received *datagramLog
	mark     int
}

// rangedFamily is what there is of an IP family.
type rangedFamily struct {
	frontend, endpoint string
	first              string // of the probes
	// probes are addresses of the client that some ranges hold and others do not; steady is
	// an address that all of them hold.
	probes []netip.Addr
	steady netip.Addr
	many   string // the first of further addresses, which no client has
}

func newRangesFixture(t *testing.T) *rangesFixture {
	t.Helper()
	w := &rangesFixture{network: newNetwork(t), random: testenv.Random(t), received: &datagramLog{texts: map[string]bool{}}, families: []*rangedFamily{
		{first: "192.0.2.0", frontend: one, endpoint: podSocket, steady: netip.MustParseAddr(clientAddr), many: "198.51.100.0"},
		{first: "2001:db8::", frontend: service6, endpoint: "[fd00:2::10]:9000", steady: netip.MustParseAddr(clientAddr6), many: "2001:db8:1::"},
	}}
	for _, f := range w.families {
		a := netip.MustParseAddr(f.first)
		err := w.node().AddRoute(netns.Route{To: netip.PrefixFrom(a, a.BitLen()-4), Link: "clients", Via: f.steady})
		for range 16 {
			err = errors.Join(err, w.NS("client").AddAddress("eth0", netip.PrefixFrom(a, a.BitLen())))
			f.probes = append(f.probes, a)
			a = a.Next()
		}
		testenv.NoError(t, err)
		w.receive(t, f.endpoint, func(_ net.PacketConn, datagram []byte, _ net.Addr) { w.received.add(string(datagram)) })
	}
	return w
}

// datagramLog is the set of all datagrams that endpoints have received.
type datagramLog struct {
	mu    sync.Mutex
	texts map[string]bool
}

func (h *datagramLog) add(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.texts[text] = true
}

func (h *datagramLog) has(text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.texts[text]
}

// ranges are source ranges by the families of a fixture; nil allows all sources.
type ranges map[*rangedFamily][]netip.Prefix

// some returns source ranges that hold the steady clients: nested, adjacent, equal,
// overlapping, in any order. One of several families has none, at times.
func (w *rangesFixture) some() ranges {
	r := ranges{}
	for _, f := range w.families {
		if r[f] = nil; w.random.IntN(20) > 0 {
			r[f] = w.someOf(f)
		}
	}
	return r
}

func (w *rangesFixture) someOf(f *rangedFamily) []netip.Prefix {
	all := []netip.Prefix{netip.PrefixFrom(f.steady, f.steady.BitLen()-w.random.IntN(9)).Masked()}
	for range w.random.IntN(5) {
		a := f.probes[w.random.IntN(len(f.probes))]
		all = append(all, netip.PrefixFrom(a, a.BitLen()-w.random.IntN(7)).Masked())
	}
	if w.random.IntN(8) == 0 { // more than a chain holds
		a := netip.MustParseAddr(f.many)
		for range w.random.IntN(300) {
			all, a = append(all, netip.PrefixFrom(a, a.BitLen())), a.Next().Next()
		}
	}
	if w.random.IntN(4) == 0 {
		all = append(all, all[w.random.IntN(len(all))])
	}
	if w.random.IntN(20) == 0 {
		all = append(all, netip.PrefixFrom(f.steady, 0).Masked())
	}
	w.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// services returns the Services with source ranges.
func (r ranges) services() proxy.Snapshot {
	var ports []*proxy.ServicePort
	for f, allowed := range r {
		for _, p := range []*proxy.ServicePort{web(f.frontend), dns(f.frontend, f.endpoint)} {
			ofKind(proxy.LoadBalancer)(p)
			p.Frontends[0].Restricted, p.Frontends[0].AllowedSources = allowed != nil, allowed
			ports = append(ports, p)
		}
	}
	return services(ports...)
}

func (r ranges) allow(f *rangedFamily, a netip.Addr) bool {
	return r[f] == nil || slices.ContainsFunc(r[f], func(p netip.Prefix) bool { return p.Contains(a) })
}

// probe sends a datagram from each address of the client, and checks that exactly those from
// addresses in the ranges arrive.
func (w *rangesFixture) probe(t *testing.T, when string, r ranges) {
	t.Helper()
	w.mark++
	text := func(a netip.Addr) string { return fmt.Sprintf("probe %d from %v", w.mark, a) }
	for f := range r {
		// The steady address is last: when its datagram arrives, all earlier ones have arrived.
		for _, a := range append(slices.Clone(f.probes), f.steady) {
			// The port must be new: the kernel may treat later datagrams of a flow like the first one.
			c, err := w.dial(t, "udp", netip.AddrPortFrom(a, uint16(20_000+w.mark)), f.frontend)
			testenv.NoError(t, err)
			send(t, c, text(a))
			_ = c.Close()
		}
	}
	for f := range r {
		for _, a := range append(slices.Clone(f.probes), f.steady) {
			if r.allow(f, a) {
				eventually(t, fmt.Sprintf("%s, with ranges %v, a datagram from %v arrives", when, r[f], a), func() bool { return w.received.has(text(a)) })
			}
		}
		for _, a := range f.probes {
			if !r.allow(f, a) && w.received.has(text(a)) {
				t.Errorf("%s, with ranges %v: got a datagram from %v, want none", when, r[f], a)
			}
		}
	}
}

// steadily connects again and again from the address that all ranges hold, until end is called,
// which returns the number of connections, and the error of one that failed.
func (w *rangesFixture) steadily(t *testing.T, to string) (end func() (connections int, err error)) {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var n int
	var failed error
	wg.Go(func() {
		for failed == nil {
			select {
			case <-stop:
				return
			default:
			}
			a, c, err := w.ask(t, to)
			if failed = err; err == nil && a.Own.String() != endpointOf(to) {
				failed = fmt.Errorf("got server %v, want %s", a.Own, endpointOf(to))
			}
			if c != nil {
				_ = c.Conn.Close()
			}
			n++
		}
	})
	return func() (int, error) {
		close(stop)
		wg.Wait()
		return n, failed
	}
}

// Source ranges change from any to any in one Apply, and some commits fail: a client that all of
// them hold can connect all the time, and the kernel allows exactly the clients in the ranges.
func TestRangesChangeInPlace(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		w := newRangesFixture(t)
		fails := false
		around := func(commit func() error) error {
			if fails {
				return errors.New("broken")
			}
			return commit()
		}
		b := w.faulty(t, c, &around)
		have, ends := ranges{}, map[string]func() (int, error){}
		for _, f := range w.families {
			have[f] = nil
		}
		apply(t, b, have.services())
		for _, f := range w.families {
			ends[f.frontend] = w.steadily(t, f.frontend)
		}
		for i := range 200 {
			next := w.some()
			fails = w.random.IntN(8) == 0
			err := b.Apply(t.Context(), have.services(), next.services())
			if err != nil && !fails {
				t.Fatalf("from %v to %v: got error %v", have, next, err)
			}
			if err == nil { // also if fails is set, and there was nothing to commit
				have = next
			}
			w.probe(t, fmt.Sprint("after change ", i), have)
		}
		for to, end := range ends {
			n, err := end()
			if err != nil {
				t.Errorf("connection %d to %s from an address that is always allowed: got error %v, want none", n, to, err)
			}
			t.Logf("%s: %d connections", to, n)
		}
		if got := b.Abilities().CountConnections().Denied; got != 0 {
			t.Errorf("datagrams that reached the process from outside of the ranges: got %d, want none", got)
		}
	})
}

// A backend gets from any number of Services and endpoints to any other, whatever else changes and
// whatever fails in between, also if a change needs several transactions.
func TestGrowth(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		for _, maxBatch := range []int{0, 12 << 10} {
			t.Run(fmt.Sprint("batches of ", maxBatch), func(t *testing.T) { testGrowth(t, userspace.Options{Capture: c}, maxBatch) })
		}
	})
}

func testGrowth(t *testing.T, o userspace.Options, maxBatch int) {
	n := network{Lab: lab.New(t, lab.Host{Name: "node"})}
	flushes := 0
	d := stagetest.DisturbNFT(func() {
		// All is removed, or a table of another program must be replaced.
		n.nft(t, []string{"flush ruleset", "add table ip vipkit-userspace { flags dormant; }"}[flushes%2])
		flushes++
	})
	var last *userspace.Backend
	g := stagetest.Growth{
		Sizes: stagetest.SizesAround(8, 40, 100), Steps: 100,
		New: func() (proxy.Backend, error) {
			if last != nil {
				testenv.NoError(t, testenv.Close(last))
			}
			last = netnstest.Open(t, n.node(), func() (*userspace.Backend, error) { return userspace.NewDisturbed(o, d, maxBatch) })
			return last, nil
		},
		Fault: d.Set,
		Dump:  func() string { return n.dump(t, o.Capture) },
		Fresh: func(want proxy.Snapshot) string {
			fresh := network{Lab: lab.New(t, lab.Host{Name: "node"})}
			apply(t, fresh.start(t, o), want)
			return fresh.dump(t, o.Capture)
		},
	}
	g.Run(t, testenv.Random(t))
	if d.Met == 0 {
		t.Error("faults: got none, want some for a meaningful test")
	}
	g.RunRefusals(t, d)
}
