package nftables

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// comingAndGoing is a way in which an instance comes and goes beside one of iptables that serves the
// same Service.
type comingAndGoing struct {
	name     string
	flavour  iptables.Flavour
	identity backends.Identity
	// services is the number of Services of the instance, and sources the number of prefixes of pods: so
	// many rules are evaluated between the look-ups of a frontend and of its endpoint.
	services, sources int
	// round makes the instance come and go.
	round func(*beside, testing.TB)
}

// waysOfRemoval returns one for each place of the code that removes tables.
func waysOfRemoval() []comingAndGoing {
	const sources = 200
	other := identity("other", 0x8000, -5)
	return []comingAndGoing{
		{"cleanup", iptables.NFT, other, 1, sources, (*beside).cleanUp},
		{"cleanup, legacy", iptables.Legacy, other, 1, sources, (*beside).cleanUp},
		{"family", iptables.NFT, other, 1, 3 * sources, (*beside).switchOff},
		{"other kind", iptables.NFT, backends.Identity{Priority: -5}, 1, 5 * sources, (*beside).succeed},
		{"many Services", iptables.NFT, other, 1500, 0, (*beside).cleanUp},
	}
}

// beside is an instance that comes and goes, and one of iptables that stays.
type beside struct {
	*testbed
	identity                backends.Identity
	comes, successor, stays proxy.Backend
	// announced is what comes and goes, served what stays.
	announced, served proxy.Snapshot
	address           netip.AddrPort
}

// begin starts the instance of iptables.
func (w *comingAndGoing) begin(t testing.TB, s *testbed) *beside {
	t.Helper()
	closeOf(t, s.Backend) // nobody removes what a running instance has
	node, ports := stagetest.Node(), make([]*proxy.ServicePort, w.services)
	for i := range w.sources {
		node.LocalTraffic.Sources = append(node.LocalTraffic.Sources, netip.PrefixFrom(stagetest.HostIP(v1.IPv4Protocol, 1<<20+i), 32))
	}
	for i := range ports {
		ports[i] = stagetest.Port(v1.IPv4Protocol, i, 10)
	}
	served := ports[len(ports)-1] // a first load has it in its last transaction
	served.Name.Protocol, served.Cluster = v1.ProtocolUDP, s.pool(0, 4)
	b := &beside{
		testbed: s, identity: w.identity,
		announced: proxy.NewSnapshot(node, ports...), served: proxy.NewSnapshot(stagetest.Node(), served), address: served.Frontends[0].Addr,
	}
	err := s.NS.Do(func() (err error) {
		b.stays, err = iptables.New(iptables.Options{Flavour: w.flavour})
		return err
	})
	if errors.Is(err, proxy.ErrUnsupported) {
		testenv.CannotRun(t, err.Error())
	}
	testenv.NoError(t, err)
	t.Cleanup(func() { closeOf(t, b.stays) })
	apply(t, b.stays, b.served)
	if w.identity.Name == "" {
		return b // no instance with the default name may run when the iptables instance starts
	}
	b.comes, b.successor = b.open(t, Options{Identity: w.identity}), b.open(t, Options{Identity: w.identity, Families: []v1.IPFamily{v1.IPv6Protocol}})
	t.Cleanup(func() {
		closeOf(t, b.comes)
		closeOf(t, b.successor)
	})
	return b
}

func (b *beside) open(t testing.TB, o Options) (opened proxy.Backend) {
	t.Helper()
	err := b.NS.Do(func() (err error) {
		opened, err = New(o)
		return err
	})
	testenv.NoError(t, err)
	return opened
}

func closeOf(t testing.TB, b proxy.Backend) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func (b *beside) cleanUp(t testing.TB) {
	t.Helper()
	b.arrive(t)
	testenv.NoError(t, b.comes.Cleanup(t.Context()))
}

// switchOff has a successor for IPv6 only.
func (b *beside) switchOff(t testing.TB) {
	t.Helper()
	b.arrive(t)
	apply(t, b.successor, b.announced)
}

// succeed ends the instance, so that the one of iptables removes what it has left.
func (b *beside) succeed(t testing.TB) {
	t.Helper()
	b.comes = b.open(t, Options{Identity: b.identity})
	b.arrive(t)
	closeOf(t, b.comes)
	apply(t, b.stays, b.served)
	if got := b.nft(t, "list", "tables"); strings.Contains(got, "vipkit\n") {
		t.Fatalf("tables after an instance has ended, and one of another kind has started: got\n%swant none of it", got)
	}
}

func (b *beside) arrive(t testing.TB) {
	t.Helper()
	apply(t, b.comes, b.announced)
}

// apply applies a snapshot as if nothing were known about the kernel.
func apply(t testing.TB, b proxy.Backend, s proxy.Snapshot) {
	t.Helper()
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
}

// No packet to a Service is lost while an instance comes and goes beside one of iptables that serves
// the Service, too.
func TestNoPacketIsLostBesideIPTables(t *testing.T) {
	t.Parallel()
	const length, least = 4 * time.Second, 5
	for _, way := range waysOfRemoval() {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := newTestbed(t, 4)
			b := way.begin(t, s)
			f := startFlood(t, s, b.address)
			rounds, start := 0, time.Now()
			for ; continues(start, length, rounds >= least); rounds++ {
				way.round(b, t)
			}
			entered, left := f.end(t)
			t.Logf("%d packets in %d rounds and %v", entered, rounds, time.Since(start).Round(time.Millisecond))
			if entered == 0 || entered != left {
				t.Errorf("packets that the node forwards to an endpoint: got %d, want all %d", left, entered)
			}
		})
	}
}

// flood is a client that sends datagrams as fast as it can. The node counts and drops those that it
// forwards: so each one is the first of its connection, and passes the rules of all instances.
type flood struct {
	*testbed
	cancel  context.CancelFunc
	sending sync.WaitGroup
}

func startFlood(t testing.TB, s *testbed, to netip.AddrPort) *flood {
	t.Helper()
	s.load(t, `table ip judge {
	counter entered {}
	counter left {}
	chain entering { type filter hook prerouting priority mangle; iifname "clients" meta l4proto udp counter name entered; }
	chain leaving { type filter hook forward priority filter; iifname "clients" udp dport 8080 counter name left drop; }
}`)
	ctx, cancel := context.WithCancel(t.Context())
	f := &flood{testbed: s, cancel: cancel}
	c, err := s.Client.ListenPacket(t.Context(), "udp4", "192.0.2.2:0")
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, c)
	f.sending.Go(func() {
		for ctx.Err() == nil {
			_, _ = c.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(to)) // an error of an earlier datagram does not matter
		}
	})
	t.Cleanup(f.stop)
	return f
}

func (f *flood) stop() {
	f.cancel()
	f.sending.Wait()
}

// end stops the client and returns how many datagrams the node received and forwarded.
func (f *flood) end(t testing.TB) (entered, left int) {
	t.Helper()
	f.stop()
	var counts []int
	for _, m := range regexp.MustCompile(`packets (\d+)`).FindAllStringSubmatch(f.nft(t, "list", "counters", "table", "ip", "judge"), -1) {
		n, err := strconv.Atoi(m[1])
		testenv.NoError(t, err)
		counts = append(counts, n)
	}
	if len(counts) != 2 {
		t.Fatalf("counters: got %d, want 2", len(counts))
	}
	return counts[0], counts[1]
}
