package userspace_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// After connections through the backend, a client can connect to the endpoint directly, from any
// port: the state of the backend's own connections must not match the client's packets.
func TestDirectConnectionsPass(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, capture userspace.Capture) {
		n := newNetwork(t)
		apply(t, n.start(t, userspace.Options{Capture: capture}), snapshot(one))
		for range 2000 {
			a, c := n.wantAnswer(t, one)
			if p := a.Client.Port(); capture == userspace.TPROXY && (a.Client.Addr().String() != clientAddr || p < 10_240 || p >= 30_240) {
				t.Fatalf("client that the endpoint sees: got %v, want ports 10240 to 30239 of %s", a.Client, clientAddr)
			}
			_ = c.Conn.Close() // the node closes first, and so keeps the connection in TIME_WAIT
			_, c = n.wantAnswer(t, podServer)
			_ = c.Conn.Close()
		}
	})
}

// While no backend runs, connections to a Service are dropped by TPROXY and refused by redirect, even if a pod
// has the address.
func TestConnectionsEndWithoutBackend(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.wantServer(t, one, one)
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, snapshot(one))
		n.wantAnswer(t, one)
		testenv.NoError(t, b.Close())
		if c == userspace.TPROXY {
			n.wantSilence(t, one)
		} else {
			n.wantRefused(t, one)
		}
		b = n.start(t, userspace.Options{Capture: c})
		apply(t, b, snapshot(one))
		testenv.Same(t, 0, b.Abilities().Operations(), "operations to adopt the objects")
		n.wantAnswer(t, one)
		testenv.NoError(t, b.Cleanup(t.Context()))
		n.wantServer(t, one, one)
	})
}

// While no backend runs, datagrams for a Service are dropped: they reach no program of the
// node that listens at every address, and are not refused.
func TestDatagramsAreDroppedWithoutBackend(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	host, err := n.node().ListenPacket(t.Context(), "udp", "0.0.0.0:53")
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, host)
	b := n.start(t, userspace.Options{})
	apply(t, b, services(dns("10.96.0.1:53")))
	testenv.NoError(t, b.Close())
	for _, to := range []string{"10.96.0.1:53", "10.244.1.1:53"} { // the second is the node's own
		if _, err := n.flow(t, to).Write([]byte(to)); err != nil {
			t.Fatal(err)
		}
	}
	wantDatagram(t, host, "10.244.1.1:53")
}

// Established connections outlive their Service for the grace period, although the kernel no
// longer captures new ones.
func TestConnectionsOutliveTheirService(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	// As on some routers: the kernel does not look up sockets before it routes.
	testenv.NoError(t, n.node().Sysctl("net/ipv4/ip_early_demux", "0"))
	b := n.start(t, userspace.Options{Timeouts: userspace.Timeouts{Drain: 5 * time.Second}})
	apply(t, b, snapshot(one))
	_, c := n.wantAnswer(t, one)
	apply(t, b, snapshot(two))
	for range 3 {
		if _, err := c.Ask(t.Context()); err != nil {
			t.Fatalf("within the grace period: got error %v, want none", err)
		}
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the grace period: got error %v, want a closed connection", err)
	}
	n.wantAnswer(t, two)
}

// Cleanup resets all connections at once.
func TestCleanupEndsConnections(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	_, c := n.wantAnswer(t, one)
	testenv.NoError(t, b.Cleanup(t.Context()))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after Cleanup: got error %v, want %v", err, syscall.ECONNRESET)
	}
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
}

func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]userspace.Options{
		"Connections": {Connections: -1}, "Sessions": {Sessions: -1},
		"IPv5": {Families: []v1.IPFamily{v1.IPv4Protocol, "IPv5"}}, "capture 200": {Capture: 200},
		"Timeouts.Wake is 1s, but": {Timeouts: userspace.Timeouts{Wake: time.Second}},
	} {
		b, err := userspace.New(o)
		if err == nil {
			_ = b.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}

// Backends of two identities serve beside each other, and neither takes what the other does for drift.
func TestInstancesAreDisjoint(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		a := n.start(t, userspace.Options{Capture: c})
		b := n.start(t, userspace.Options{Capture: c, Identity: backends.Identity{Name: "another", Mark: 0x10000}})
		apply(t, a, snapshot(one))
		apply(t, b, snapshot(two))
		n.wantAnswer(t, one)
		n.wantAnswer(t, two)
		apply(t, a, snapshot(one)) // a full apply
		n.wantAnswer(t, two)
		testenv.NoError(t, a.Cleanup(t.Context()))
		n.wantAnswer(t, two)
		if b.Abilities().Drifted(t.Context()) {
			t.Error("Drifted after a commit to the tables of another identity: got true, want false")
		}
		before := b.Abilities().Operations()
		apply(t, b, snapshot(two))
		if got := b.Abilities().Operations() - before; got != 0 || b.Abilities().Drifted(t.Context()) {
			t.Errorf("a resync after the other instance's Cleanup: got %d operations and Drifted %v, want none", got, b.Abilities().Drifted(t.Context()))
		}
	})
}

// A second process with the same identity gets an error that says the cause and what to do. It
// does not disturb the first one, and can replace it after that has ended.
func TestSecondProcessGetsError(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		o := userspace.Options{Capture: c, Identity: backends.Identity{Name: "twice"}}
		first, second := n.start(t, o), n.start(t, o)
		apply(t, first, snapshot(one))
		err := second.Apply(t.Context(), proxy.Snapshot{}, snapshot(two))
		if !errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, proxy.ErrUnsupported) {
			t.Errorf("with the addresses in use: got error %v, want one that is %v", err, syscall.EADDRINUSE)
		}
		for _, want := range []string{`another backend with the identity "twice"`, "Options.Identity", "Options.Port"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("with the addresses in use: got error %v, want one that contains %s", err, want)
			}
		}
		n.wantAnswer(t, one)
		testenv.NoError(t, first.Close())
		apply(t, second, snapshot(two))
		n.wantAnswer(t, two)
	})
}

// Packets to a frontend with the action Pass reach the host that has the address. Trackers make no such frontend.
func TestPassedFrontends(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		apply(t, n.start(t, userspace.Options{Capture: c}), services(snapshots.With(web(one), ofKind(proxy.ExternalIP), doing(proxy.Pass))))
		n.wantServer(t, one, one)
	})
}

// Datagrams of any size are echoed unchanged, from the frontend's address: the client's socket
// is connected, and receives none from other addresses.
func TestDatagramsOfAllSizes(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, capture userspace.Capture) {
		n := newNetwork(t)
		at := map[string]string{"10.96.0.1:53": podSocket, "[fd00:96::1]:53": "[fd00:2::10]:9000"}
		s := services()
		for frontend, server := range at {
			n.echo(t, server)
			s = and(s, dns(frontend, server))
		}
		apply(t, n.start(t, userspace.Options{Capture: capture}), s)
		for to := range at {
			for _, size := range []int{0, 1, 7, 1400, 1473, 9001, 65_000} {
				// A new socket for each size: a late answer must not be mistaken for the next one.
				want := strings.Repeat(string(rune('a'+size%26)), size)
				if got := exchange(t, n.flow(t, to), want); got != want {
					t.Errorf("at %s, %d bytes sent: got %d bytes back, want the same", to, size, len(got))
				}
			}
		}
	})
}

// exchange sends a datagram, again if it is lost, and returns the answer.
func exchange(t *testing.T, c net.Conn, datagram string) string {
	t.Helper()
	buf := make([]byte, 64<<10)
	for range 10 {
		_, err := c.Write([]byte(datagram))
		if err == nil {
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			var size int
			if size, err = c.Read(buf); err == nil {
				return string(buf[:size])
			}
		}
		t.Logf("datagram to %v: %v", c.RemoteAddr(), err)
	}
	t.Fatalf("datagram to %v: got no answer, want one", c.RemoteAddr())
	return ""
}

// Service ports for SCTP are reported by name, and all others are served.
func TestSCTPIsReportedByName(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		commits := 0
		around := func(commit func() error) error {
			commits++
			return commit()
		}
		b := n.faulty(t, c, &around)
		sctp := snapshots.With(web(one), ofProtocol(v1.ProtocolSCTP))
		// wants checks that Apply reports only the service port for SCTP, in a single commit.
		wants := func(old proxy.Snapshot, ports ...*proxy.ServicePort) (applied proxy.Snapshot) {
			t.Helper()
			commits = 0
			err := b.Apply(t.Context(), old, services(append(ports, sctp)...))
			failed, ok := errors.AsType[proxy.PortErrors](err)
			if !ok || len(failed) != 1 || failed[sctp.Name] == nil || errors.Is(err, proxy.ErrDataplaneLost) {
				t.Errorf("got error %v, want one that names %v alone", err, sctp.Name)
			}
			if commits > 1 {
				t.Errorf("commits: got %d, want 1 at most", commits)
			}
			return services(ports...)
		}
		applied := wants(proxy.Snapshot{}, web(one))
		n.wantAnswer(t, one)
		applied = wants(applied, web(one), web(two))
		n.wantAnswer(t, two)
		// A frontend moves from one service port to another.
		moved := snapshots.With(web(two), func(p *proxy.ServicePort) { p.Name.Name = "moved" })
		applied = wants(applied, web(one), moved)
		n.wantAnswer(t, two)
		if err := b.Apply(t.Context(), applied, snapshot(one)); err != nil {
			t.Errorf("without SCTP: got error %v, want none", err)
		}
	})
}
