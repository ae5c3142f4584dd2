package userspace_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
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

// With each capture, connections reach the endpoint, which sees the client or the node.
func TestCaptures(t *testing.T) {
	t.Parallel()
	for capture, sees := range map[userspace.Capture]string{
		userspace.TPROXY:   clientAddr,
		userspace.Redirect: "10.244.2.1",
	} {
		t.Run(capture.String(), func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.serve(t, podServer)
			apply(t, n.start(t, userspace.Options{Capture: capture}), snapshot(one))
			if peer, _ := n.wantAnswer(t, one); peer.Addr().String() != sees {
				t.Errorf("address that the endpoint sees: got %v, want %s", peer, sees)
			}
		})
	}
}

func TestUnknownCapture(t *testing.T) {
	t.Parallel()
	if _, err := userspace.New(userspace.Options{Capture: 200}); err == nil || !strings.Contains(err.Error(), "capture 200") {
		t.Errorf("got error %v, want one that names the capture", err)
	}
}

// local lists the backend's own routes in the table of local addresses.
func (n network) local(t *testing.T) []string {
	t.Helper()
	out, err := n.routes(255)
	testenv.NoError(t, err)
	return out
}

// A process with another capture replaces the objects of the one before, and its Cleanup
// removes those of both.
func TestCaptureChanges(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	var last *userspace.Backend
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect, userspace.TPROXY, userspace.Redirect} {
		if last != nil {
			testenv.NoError(t, last.Close())
		}
		last = n.start(t, userspace.Options{Capture: capture})
		apply(t, last, snapshot(one))
		n.wantAnswer(t, one)
		rules, local := 1, 2
		if capture == userspace.Redirect {
			rules, local = 0, 3
		}
		if got := len(n.rules(t)); got != rules {
			t.Errorf("%v: routing rules: got %d, want %d", capture, got, rules)
		}
		if got := n.local(t); len(got) != local {
			t.Errorf("%v: local routes: got %q, want %d", capture, got, local)
		}
		if last.Drifted(t.Context()) {
			t.Errorf("%v: Drifted: got true, want false", capture)
		}
	}
	testenv.NoError(t, last.Cleanup(t.Context()))
	if rules, local := n.rules(t), n.local(t); len(rules)+len(local) != 0 {
		t.Errorf("after Cleanup: got rules %v and local routes %q, want none", rules, local)
	}
}

// While no backend runs, translated connections are refused, and reach no other program.
func TestRedirectRefusesWithoutBackend(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	n.serve(t, one)
	b := n.start(t, userspace.Options{Capture: userspace.Redirect})
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
	testenv.NoError(t, b.Close())
	if server, _, _, err := n.ask(t, one); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without a backend: got %q and error %v, want %v", server, err, syscall.ECONNREFUSED)
	}
}

// Clients cannot connect to the addresses of listeners, not even at a node port, although every
// other address of the node serves it.
func TestListenersAreNotReachableDirectly(t *testing.T) {
	t.Parallel()
	for capture, want := range map[userspace.Capture]int{userspace.TPROXY: 2, userspace.Redirect: 3} {
		t.Run(capture.String(), func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.serve(t, podServer)
			s := snapshot("0.0.0.0:30100")
			node := *s.Node()
			node.NodePorts.All = true
			apply(t, n.start(t, userspace.Options{Capture: capture}), withNode(s, &node))
			n.wantAnswer(t, "10.244.1.1:30100")
			listeners := n.local(t)
			if len(listeners) != want {
				t.Fatalf("got listeners %q, want %d", listeners, want)
			}
			var wg sync.WaitGroup
			for _, listener := range listeners {
				for _, port := range []uint16{userspace.DefaultPort, 30_100} {
					wg.Go(func() { n.wantSilence(t, netip.AddrPortFrom(netip.MustParsePrefix(listener).Addr(), port).String()) })
				}
			}
			wg.Wait()
		})
	}
}

// Connections to an endpoint that is the Service's own address would loop; they end at once.
func TestLoopEnds(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	b := n.start(t, userspace.Options{Capture: userspace.Redirect})
	apply(t, b, withEndpoint(snapshot(one), one))
	if server, _, _, err := n.ask(t, one); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %q and error %v, want the connection to end", server, err)
	}
	if s := b.Stats(); s.Accepted != 1 || s.Failed != 1 {
		t.Errorf("got %d accepted connections and %d failed, want 1 each", s.Accepted, s.Failed)
	}
	const dns = "10.96.0.1:53"
	apply(t, b, withEndpoint(names(dns), dns))
	conn, err := n.client.Dial(t.Context(), "udp", dns)
	testenv.NoError(t, err)
	defer conn.Close() //nolint:errcheck // the test is over
	if _, err := conn.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datagram has failed", func() bool { return b.Stats().Failed == 2 })
	if s := b.Stats(); s.Sessions != 0 {
		t.Errorf("sessions: got %d, want none", s.Sessions)
	}
	var counter backends.ConnectionCounter = b
	open, accepted, refused, faults, bytes := counter.CountConnections()
	if open != [2]int{} || accepted != 1 || refused != [3]uint64{2} || faults != 0 || bytes != [2]uint64{} {
		t.Errorf("got %v open, %d accepted, %v refused, %d faults and %v bytes, want none, 1, 2 that failed, none and none", open, accepted, refused, faults, bytes)
	}
}

// Connections to an endpoint that is the node port itself, at any address of the node, would
// loop; they end at once.
func TestLoopOfNodePorts(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		s := withEndpoint(snapshot("0.0.0.0:30100"), "10.244.2.1:30100")
		node := *s.Node()
		node.NodePorts.All = true
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, withNode(s, &node))
		if server, _, _, err := n.ask(t, "10.244.1.1:30100"); err == nil {
			t.Errorf("got %q, want the connection to end", server)
		}
		if s := b.Stats(); s.Accepted > 2 {
			t.Errorf("accepted connections: got %d, want 2 at most", s.Accepted)
		}
	})
}

// withEndpoint sets the endpoint of all service ports.
func withEndpoint(s proxy.Snapshot, at string) proxy.Snapshot {
	return snapshots.EachWith(s, snapshots.Pool(at))
}

// A client may connect to two Services from one port at a time.
func TestOneClientPortForTwoServices(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.addIPv6(t)
	asks := []struct {
		family           v1.IPFamily
		from, to, server string
	}{
		{v1.IPv4Protocol, "0.0.0.0:40000", one, podServer},
		{v1.IPv4Protocol, "0.0.0.0:40000", two, podAddr + ":8081"},
		{v1.IPv6Protocol, "[::]:40000", "[fd00:96::1]:80", "[fd00:2::10]:8080"},
		{v1.IPv6Protocol, "[::]:40000", "[fd00:96::2]:80", "[fd00:2::10]:8081"},
	}
	var all proxy.Snapshot
	for i, a := range asks {
		n.serve(t, a.server)
		next := withEndpoint(snapshot(a.to), a.server)
		if i > 0 {
			next = both(all, next)
		}
		all = next
	}
	apply(t, n.start(t, userspace.Options{Capture: userspace.Redirect}), all)
	for _, a := range asks {
		got, err := n.greetingFrom(t, netip.MustParseAddrPort(a.from), a.to)
		if err != nil || !strings.HasPrefix(got, a.server+" ") {
			t.Errorf("%s from port 40000: got %q and error %v, want an answer of %s", a.to, got, err, a.server)
		}
	}
}

// greeting connects from a port of the client, and returns what the server sends first. The
// connection stays open.
func (n network) greeting(t *testing.T, to string, port int) (string, error) {
	t.Helper()
	return n.greetingFrom(t, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port)), to)
}

// greetingFrom is greeting from an address and port of the client.
func (n network) greetingFrom(t *testing.T, from netip.AddrPort, to string) (string, error) {
	t.Helper()
	var c net.Conn
	err := n.client.Do(func() (err error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Control: shared}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		c, err = d.DialContext(ctx, "tcp", to)
		return err
	})
	if err != nil {
		return "", err
	}
	t.Cleanup(func() { _ = c.Close() })
	buf := make([]byte, 100)
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	size, err := c.Read(buf)
	return string(buf[:size]), err
}

// shared allows connections to different destinations to share a source port.
func shared(_, _ string, c syscall.RawConn) (err error) {
	return errors.Join(c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}), err)
}

// routes lists the destinations of the backend's own routes in a table.
func (n network) routes(table int) (out []string, err error) {
	all, err := n.node.Netlink().RouteListFiltered(syscall.AF_INET, ownRoutes(table), ownRoutesMask)
	for i := range all {
		out = append(out, all[i].Dst.String())
	}
	return out, err
}
