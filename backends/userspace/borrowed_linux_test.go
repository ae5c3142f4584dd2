package userspace_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace"
)

// borrower is a client beside whose own flows to an endpoint the backend reaches the same endpoint
// from the client's address.
type borrower struct {
	network

	backend           *userspace.Backend
	protocol          string
	client            netip.Addr
	service, endpoint string
	// masqueraded says that another program translates what leaves the client's network.
	masqueraded bool
}

// A client may have a flow of its own to an endpoint, from the same port from which the backend
// reaches that endpoint for it. Neither disturbs the other, whichever begins first.
func TestBorrowedPortsMayBeInUse(t *testing.T) {
	t.Parallel()
	for name, world := range map[string]func(*testing.T) network{
		"routed": func(t *testing.T) network {
			t.Helper()
			n := newNetwork(t)
			n.addIPv6(t)
			return n
		},
		"masqueraded": func(t *testing.T) network {
			t.Helper()
			n := newNetwork(t)
			n.addIPv6(t)
			n.nft(t, `table ip foreign { chain post { type nat hook postrouting priority 100; ip saddr `+clientAddr+` masquerade; }; }
				table ip6 foreign { chain post { type nat hook postrouting priority 100; ip6 saddr fd00:1::10 masquerade; }; }`)
			return n
		},
		"bridged":                func(t *testing.T) network { t.Helper(); return newBridged(t, false).network },
		"bridged with netfilter": func(t *testing.T) network { t.Helper(); return newBridged(t, true).network },
	} {
		// The places of most chains move by the priority.
		for protocol, priority := range map[string]int32{"tcp": 50, "udp": -50} {
			for _, w := range []borrower{
				{client: netip.MustParseAddr(clientAddr), service: one, endpoint: podServer},
				{client: netip.MustParseAddr("fd00:1::10"), service: service6, endpoint: podServer6},
			} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, protocol, w.endpoint), func(t *testing.T) {
					w.network, w.protocol, w.masqueraded = world(t), protocol, name == "masqueraded"
					w.serve(t, w.endpoint)
					w.servePeerAddress(t, w.endpoint)
					w.backend = w.start(t, userspace.Options{Identity: backends.Identity{Priority: priority}})
					apply(t, w.backend, bridgedServices())
					testBorrowedPorts(t, &w)
				})
			}
		}
	}
}

func testBorrowedPorts(t *testing.T, w *borrower) {
	t.Helper()
	const taken = 20_000
	own := w.open(t, taken, w.endpoint)
	from := w.client
	if w.masqueraded {
		from = own.seen.Addr()
	}
	w.backend.ReachFrom(taken)
	first := w.open(t, 0, w.service)
	if first.seen.Port() == taken || first.seen.Addr() != from {
		t.Errorf("beside the client's own flow from port %d: the endpoint sees %v, want another port of %v", taken, first.seen, from)
	}
	second := w.open(t, 0, w.service)
	later := w.open(t, second.seen.Port(), w.endpoint)
	if later.seen.Port() == second.seen.Port() || later.seen.Addr() != from {
		t.Errorf("beside the backend's flow from port %d: the endpoint sees %v, want another port of %v", second.seen.Port(), later.seen, from)
	}
	flows := []*borrowed{own, first, second, later}
	for range 3 {
		for _, f := range flows {
			f.wantAnswer(t)
		}
	}
	// What the node keeps of closed connections disturbs no flow either.
	_ = first.Close()
	_ = second.Close()
	third := w.open(t, 0, w.service)
	_ = third.Close()
	flows = []*borrowed{own, later, w.open(t, third.seen.Port(), w.endpoint)}
	for _, f := range flows {
		f.wantAnswer(t)
	}
}

// borrowed is a flow of a client, and the client's address and port that the endpoint sees.
type borrowed struct {
	net.Conn

	seen netip.AddrPort
}

// open begins a flow from a port of the client, 0 for any, and waits for the first answer.
func (w *borrower) open(t *testing.T, port uint16, to string) *borrowed {
	t.Helper()
	from := netip.AddrPortFrom(w.client, port)
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Control: shared}
	if w.protocol == "udp" {
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	f := &borrowed{}
	if err := w.network.client.Do(func() (err error) {
		f.Conn, err = d.DialContext(ctx, w.protocol, to)
		return err
	}); err != nil {
		t.Fatalf("from %v to %s: %v", from, to, err)
	}
	t.Cleanup(func() { _ = f.Close() })
	said := ""
	if w.protocol == "udp" {
		said = f.exchange(t)
	} else if _, said, _ = strings.Cut(strings.TrimSpace(f.read(t)), " "); said != "" {
		if err := checkRetransmits(f.Conn); err != nil {
			t.Errorf("from %v to %s: %v", from, to, err)
		}
	}
	var err error
	if f.seen, err = netip.ParseAddrPort(said); err != nil {
		t.Fatalf("from %v to %s: %v", from, to, err)
	}
	return f
}

// wantAnswer checks that a flow continues, and that no packet of it was lost.
func (f *borrowed) wantAnswer(t *testing.T) {
	t.Helper()
	want := f.seen.String()
	if _, ok := f.Conn.(*net.TCPConn); ok {
		want = "?"
		defer func() {
			if err := checkRetransmits(f.Conn); err != nil {
				t.Errorf("%v to %v: %v", f.LocalAddr(), f.RemoteAddr(), err)
			}
		}()
	}
	if got := f.exchange(t); got != want {
		t.Errorf("%v to %v: got answer %q, want %q", f.LocalAddr(), f.RemoteAddr(), got, want)
	}
}

func (f *borrowed) exchange(t *testing.T) string {
	t.Helper()
	if _, err := f.Write([]byte("?")); err != nil {
		t.Errorf("%v to %v: %v", f.LocalAddr(), f.RemoteAddr(), err)
		return ""
	}
	return f.read(t)
}

func (f *borrowed) read(t *testing.T) string {
	t.Helper()
	_ = f.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, 200)
	n, err := f.Read(buf)
	if err != nil {
		t.Errorf("%v to %v: %v", f.LocalAddr(), f.RemoteAddr(), err)
	}
	return string(buf[:n])
}

// Another program may put all packets of the node into a zone of its own, before the backend can. Then the ports of
// clients are not protected, and everything else works.
func TestForeignZone(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	n.servePeerAddress(t, podServer)
	n.nft(t, `table ip foreign {
		chain coming { type filter hook prerouting priority -300; ct zone set 1; }
		chain own { type filter hook output priority -300; ct zone set 1; }
	}`)
	apply(t, n.start(t, userspace.Options{}), bridgedServices())
	for _, protocol := range []string{"tcp", "udp"} {
		w := &borrower{network: n, protocol: protocol, client: netip.MustParseAddr(clientAddr)}
		for range 3 {
			w.open(t, 0, one).wantAnswer(t)
		}
	}
}
