package userspace_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// rangesFixture is a network, with a client that has many addresses, for Services with source
// ranges in each family, for TCP and for UDP.
type rangesFixture struct {
	network
	random *rand.Rand
	// probes are addresses of the client that some ranges hold and others do not; steady is
	// an address that all of them hold.
	probes, steady map[v1.IPFamily][]netip.Addr
	received       *datagramLog
	mark           int
}

func rangedFrontend(f v1.IPFamily) netip.AddrPort {
	if f == v1.IPv6Protocol {
		return netip.MustParseAddrPort("[fd00:96::1]:80")
	}
	return netip.MustParseAddrPort(one)
}

func rangedEndpoint(f v1.IPFamily) netip.AddrPort {
	if f == v1.IPv6Protocol {
		return netip.MustParseAddrPort("[fd00:2::10]:8080")
	}
	return netip.MustParseAddrPort(podServer)
}

func bothFamilies() []v1.IPFamily { return []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} }

func newRangesFixture(t *testing.T) *rangesFixture {
	t.Helper()
	w := &rangesFixture{
		network: newNetwork(t), random: testenv.Random(t), received: &datagramLog{texts: map[string]bool{}},
		probes: map[v1.IPFamily][]netip.Addr{}, steady: map[v1.IPFamily][]netip.Addr{
			v1.IPv4Protocol: {netip.MustParseAddr(clientAddr)}, v1.IPv6Protocol: {netip.MustParseAddr("fd00:1::10")},
		},
	}
	w.addIPv6(t)
	for f, first := range map[v1.IPFamily]string{v1.IPv4Protocol: "192.0.2.0", v1.IPv6Protocol: "2001:db8::"} {
		a := netip.MustParseAddr(first)
		err := w.node.AddRoute(netns.Route{To: netip.PrefixFrom(a, a.BitLen()-4), Link: "clients", Via: w.steady[f][0]})
		for range 16 {
			err = errors.Join(err, w.client.AddAddress("eth0", netip.PrefixFrom(a, a.BitLen())))
			w.probes[f] = append(w.probes[f], a)
			a = a.Next()
		}
		testenv.NoError(t, err)
		w.serve(t, rangedEndpoint(f).String())
		w.record(t, rangedEndpoint(f).String())
	}
	return w
}

// datagramLog is the set of all datagrams that endpoints have received.
type datagramLog struct {
	mu    sync.Mutex
	texts map[string]bool
}

func (h *datagramLog) has(text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.texts[text]
}

// record records all datagrams to an endpoint.
func (w *rangesFixture) record(t *testing.T, at string) {
	t.Helper()
	c, err := w.pod.ListenPacket(t.Context(), "udp", at)
	testenv.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for buf := make([]byte, 200); ; {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			w.received.mu.Lock()
			w.received.texts[string(buf[:n])] = true
			w.received.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// ranges returns source ranges that hold the steady client: nested, adjacent, equal,
// overlapping, in any order.
func (w *rangesFixture) ranges(f v1.IPFamily) []netip.Prefix {
	steady := w.steady[f][0]
	all := []netip.Prefix{netip.PrefixFrom(steady, steady.BitLen()-w.random.IntN(9)).Masked()}
	for range w.random.IntN(5) {
		a := w.probes[f][w.random.IntN(len(w.probes[f]))]
		all = append(all, netip.PrefixFrom(a, a.BitLen()-w.random.IntN(7)).Masked())
	}
	if w.random.IntN(8) == 0 { // more than a chain holds
		a := netip.MustParseAddr(map[v1.IPFamily]string{v1.IPv4Protocol: "198.51.100.0", v1.IPv6Protocol: "2001:db8:1::"}[f])
		for range w.random.IntN(300) {
			all, a = append(all, netip.PrefixFrom(a, a.BitLen())), a.Next().Next()
		}
	}
	if w.random.IntN(4) == 0 {
		all = append(all, all[w.random.IntN(len(all))])
	}
	if w.random.IntN(20) == 0 {
		all = append(all, netip.PrefixFrom(netip.PrefixFrom(steady, 0).Masked().Addr(), 0))
	}
	w.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// withRanges returns the Services with source ranges by family; nil allows all sources.
func withRanges(ranges map[v1.IPFamily][]netip.Prefix) proxy.Snapshot {
	var ports []*proxy.ServicePort
	for f, allowed := range ranges {
		for _, protocol := range []string{"TCP", "UDP"} {
			p := snapshots.Port("ranged/"+protocol, "lb="+rangedFrontend(f).String(), rangedEndpoint(f).String())
			p.Frontends[0].Restricted, p.Frontends[0].AllowedSources = allowed != nil, allowed
			ports = append(ports, p)
		}
	}
	return proxy.NewSnapshot(&proxy.Node{Name: "node", Addresses: snapshots.Addrs("10.244.1.1", "fd00:1::1")}, ports...)
}

func allows(ranges []netip.Prefix, a netip.Addr) bool {
	return ranges == nil || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// probe sends a datagram from each address of the client, and checks that exactly those from
// addresses in the ranges arrive.
func (w *rangesFixture) probe(t *testing.T, when string, ranges map[v1.IPFamily][]netip.Prefix) {
	t.Helper()
	w.mark++
	text := func(a netip.Addr) string { return fmt.Sprintf("probe %d from %v", w.mark, a) }
	all := map[v1.IPFamily][]netip.Addr{}
	for f := range ranges {
		// The steady address is last: when its datagram arrives, all earlier ones have arrived.
		all[f] = append(slices.Clone(w.probes[f]), w.steady[f]...)
		if err := w.client.Do(func() error { return sendFrom(all[f], uint16(20_000+w.mark), rangedFrontend(f), text) }); err != nil {
			t.Fatal(err)
		}
	}
	for f, ranges := range ranges {
		for _, a := range all[f] {
			if allows(ranges, a) {
				eventually(t, fmt.Sprintf("%s, with ranges %v, a datagram from %v arrives", when, ranges, a), func() bool { return w.received.has(text(a)) })
			}
		}
		for _, a := range all[f] {
			if !allows(ranges, a) && w.received.has(text(a)) {
				t.Errorf("%s, with ranges %v: got a datagram from %v, want none", when, ranges, a)
			}
		}
	}
}

// sendFrom sends a datagram from each address. The port must be new: the kernel may treat later
// datagrams of a flow like the first one.
func sendFrom(from []netip.Addr, port uint16, to netip.AddrPort, text func(netip.Addr) string) error {
	for _, a := range from {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, port)), net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		if _, err := c.Write([]byte(text(a))); err != nil {
			return errors.Join(err, c.Close())
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// steadily connects again and again from the address that all ranges hold, until end is called,
// which returns the number of connections, and the error of one that failed.
func (w *rangesFixture) steadily(t *testing.T, f v1.IPFamily) (end func() (connections int, err error)) {
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
			var c net.Conn
			if c, failed = w.client.Dial(t.Context(), "tcp", rangedFrontend(f).String()); failed != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(30 * time.Second))
			failed = errors.Join(checkRetransmits(c), greeted(c, rangedEndpoint(f).String()), c.Close())
			n++
		}
	})
	return func() (int, error) {
		close(stop)
		wg.Wait()
		return n, failed
	}
}

func greeted(c net.Conn, by string) error {
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err == nil && !strings.HasPrefix(string(buf[:n]), by+" ") {
		err = fmt.Errorf("got %q, want an answer of %s", buf[:n], by)
	}
	return err
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
		have := map[v1.IPFamily][]netip.Prefix{v1.IPv4Protocol: nil, v1.IPv6Protocol: nil}
		apply(t, b, withRanges(have))
		ends := map[v1.IPFamily]func() (int, error){}
		for _, f := range bothFamilies() {
			ends[f] = w.steadily(t, f)
		}
		for i := range 200 {
			next := map[v1.IPFamily][]netip.Prefix{}
			for _, f := range bothFamilies() {
				if next[f] = w.ranges(f); w.random.IntN(20) == 0 {
					next[f] = nil
				}
			}
			fails = w.random.IntN(8) == 0
			err := b.Apply(t.Context(), withRanges(have), withRanges(next))
			if err != nil && !fails {
				t.Fatalf("from %v to %v: got error %v", have, next, err)
			}
			if err == nil { // also if fails is set, and there was nothing to commit
				have = next
			}
			w.probe(t, fmt.Sprint("after change ", i), have)
		}
		for f, end := range ends {
			n, err := end()
			if err != nil {
				t.Errorf("%s: connection %d from an address that is always allowed: got error %v, want none", f, n, err)
			}
			t.Logf("%s: %d connections", f, n)
		}
		if got := b.Stats().Denied; got != 0 {
			t.Errorf("datagrams that reached the process from outside of the ranges: got %d, want none", got)
		}
	})
}

// A process that starts after another one has ended finds other source ranges, and replaces them.
func TestRangesChangeAcrossRestarts(t *testing.T) {
	for _, c := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		t.Run(c.String(), func(t *testing.T) {
			w := newRangesFixture(t)
			var processes testenv.Succession
			for i := range 25 {
				ranges := map[v1.IPFamily][]netip.Prefix{v1.IPv4Protocol: w.ranges(v1.IPv4Protocol), v1.IPv6Protocol: w.ranges(v1.IPv6Protocol)}
				if w.random.IntN(8) == 0 {
					ranges[v1.IPv4Protocol] = nil
				}
				b := testenv.Next(t, &processes, func() (b *userspace.Backend, err error) {
					err = w.node.Do(func() error {
						b, err = userspace.New(userspace.Options{Capture: c})
						return err
					})
					return b, err
				})
				apply(t, b, withRanges(ranges))
				w.probe(t, fmt.Sprint("after restart ", i), ranges)
				if got := b.Stats().Denied; got != 0 {
					t.Errorf("after restart %d: datagrams that reached the process from outside of the ranges: got %d, want none", i, got)
				}
				if b.Drifted(t.Context()) {
					t.Errorf("after restart %d: Drifted: got true, want false", i)
				}
			}
		})
	}
}

// The next resync repairs source ranges that another program has changed.
func TestRangesAreRepaired(t *testing.T) {
	t.Parallel()
	netnstest.NFT(t)
	for _, many := range []bool{false, true} {
		t.Run(fmt.Sprintf("many=%v", many), func(t *testing.T) {
			w := newRangesFixture(t)
			ranges := map[v1.IPFamily][]netip.Prefix{v1.IPv4Protocol: {netip.PrefixFrom(w.steady[v1.IPv4Protocol][0], 32), netip.MustParsePrefix("192.0.2.4/30")}}
			for i := 0; many && i < 200; i++ {
				ranges[v1.IPv4Protocol] = append(ranges[v1.IPv4Protocol], netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(i), 0}), 25))
			}
			b := w.start(t, userspace.Options{})
			apply(t, b, withRanges(ranges))
			want := w.dump(t, userspace.TPROXY)
			chains := w.chains(t)
			if got, want := len(chains) > 1, many; got != want {
				t.Fatalf("chains of the ranges: got %q, want more than one: %v", chains, want)
			}
			for _, chain := range chains {
				for _, script := range []string{
					"insert rule ip vipkit-userspace %s accept", "add rule ip vipkit-userspace %s accept", "flush chain ip vipkit-userspace %s",
					"flush chain ip vipkit-userspace %s; add rule ip vipkit-userspace %[1]s accept",
					"add rule ip vipkit-userspace %s accept comment \"198.51.100.1-198.51.100.1\"",
					"flush map ip vipkit-userspace restricted; flush chain ip vipkit-userspace %s",
					"add chain ip vipkit-userspace %s-7; add rule ip vipkit-userspace %[1]s-7 accept",
				} {
					script = fmt.Sprintf(script, chain)
					w.nft(t, script)
					if !b.Drifted(t.Context()) {
						t.Errorf("%s: Drifted: got false, want true", script)
					}
					apply(t, b, withRanges(ranges))
					if diff := cmp.Diff(want, w.dump(t, userspace.TPROXY)); diff != "" {
						t.Errorf("%s: objects after the repair (-want +got):\n%s", script, diff)
					}
					w.probe(t, script, ranges)
				}
			}
		})
	}
}

// chains lists the chains of source ranges.
func (w *rangesFixture) chains(t *testing.T) (all []string) {
	t.Helper()
	for line := range strings.Lines(w.nft(t, "list table ip vipkit-userspace")) {
		if name, is := strings.CutPrefix(strings.TrimSpace(line), "chain from-"); is {
			all = append(all, "from-"+strings.TrimSuffix(name, " {"))
		}
	}
	return all
}
