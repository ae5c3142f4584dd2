package engine

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit, first, next int // the most that a first and a next client get
	}{
		{1, 1, 1}, {2, 1, 1}, {3, 2, 1}, {8, 4, 1}, {16, 8, 2}, {65_536, 32_768, 8_192},
	} {
		q := newQuota(c.limit)
		hog := func(client netip.Addr) (n int) {
			for q.take(holder{client: client}) {
				n++
			}
			return n
		}
		if first, next := hog(alice), hog(bob); first != c.first || next != c.next {
			t.Errorf("of %d: got %d for the first client and %d for the next, want %d and %d", c.limit, first, next, c.first, c.next)
		}
		for range c.first {
			q.give(holder{client: alice})
		}
		for range c.next {
			q.give(holder{client: bob})
		}
		if len(q.counts) != 0 {
			t.Errorf("of %d: after all have ended: got counts %v, want none", c.limit, q.counts)
		}
	}
}

// However many clients a service port has, it leaves a quarter to other service ports.
func TestSharesOfServices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit, first, next int // the most that a first and a next service port get
	}{
		{3, 3, 3}, // too few to reserve a quarter
		{4, 3, 2}, {8, 6, 4}, {16, 12, 8}, {65_536, 49_152, 32_768},
	} {
		q := newQuota(c.limit)
		client := memoryClient.Addr()
		hog := func(s *service) (n int) {
			for range c.limit { // one flow of each client
				if client = client.Next(); !q.take(holder{client, s}) {
					break
				}
				n++
			}
			return n
		}
		if first, next := hog(&service{}), hog(&service{}); first != c.first || next != c.next {
			t.Errorf("of %d: got %d for the first service port and %d for the next, want %d and %d", c.limit, first, next, c.first, c.next)
		}
	}
}

func TestClientKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		addr   string
		origin Origin
		want   string
	}{
		{"192.0.2.1", Outside, "192.0.2.1"},
		{"2001:db8::1:2:3:4", Outside, "2001:db8::"},
		{"2001:db8::1:2:3:4", ByAddress, "2001:db8::"},
		{"2001:db8:1:2:3:4:5:6", Outside, "2001:db8:1:2::"},
		{"2001:db8::1:2:3:4", Pod, "2001:db8::1:2:3:4"},
		{"2001:db8::1:2:3:4", Node, "2001:db8::1:2:3:4"},
		{"127.0.0.1", Node, ""},
		{"::1", Node, ""},
	} {
		want, _ := netip.ParseAddr(c.want)
		if got := clientKey(netip.MustParseAddr(c.addr), c.origin); got != want {
			t.Errorf("%s, origin %d: got %v, want %s", c.addr, c.origin, got, c.want)
		}
	}
}

// A client that opens as many connections as it can leaves room for another one.
func TestOneClientDoesNotUseUpConnections(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{Connections: 16}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, named(t))
	w.countPodsAtLoopback()
	for range 8 {
		readName(t, dialFrom(t, "127.0.0.2", at))
	}
	for range 20 {
		c, err := net.DialTCP("tcp4", &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}, net.TCPAddrFromAddrPort(at))
		if err != nil {
			continue // The connection was reset before DialTCP returned.
		}
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, connectionReset) {
			t.Fatalf("a connection beyond the client's half: got %d bytes and error %v, want %v", n, err, connectionReset)
		}
		shut(c)
	}
	readName(t, dialFrom(t, "127.0.0.3", at))
	if s := w.CountConnections(); s.Crowded != 20 || s.Connections != 9 {
		t.Errorf("got %d connections and %d crowded, want 9 and 20", s.Connections, s.Crowded)
	}
}

// However low the limit of connections is, each listener serves.
func TestFewConnectionsForManyListeners(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{Connections: 1}, v1.ProtocolTCP)
	want := named(t)
	var listeners []netip.AddrPort
	for range 6 {
		listeners = append(listeners, w.listen(t))
	}
	for range 3 {
		for _, at := range listeners {
			w.serveAt(at, want)
			c := dialTo(t, at)
			if got := readName(t, c); got != want.String() {
				t.Fatalf("got %s, want %v", got, want)
			}
			shut(c)
			eventually(t, "the connection has ended", func() bool { return w.CountConnections().Connections == 0 && len(w.tasks.slots) == 0 })
		}
	}
}
