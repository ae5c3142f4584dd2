package engine

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestShares(t *testing.T) {
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
			t.Errorf("of %d: the first client gets %d and the next %d, want %d and %d", c.limit, first, next, c.first, c.next)
		}
		for range c.first {
			q.give(holder{client: alice})
		}
		for range c.next {
			q.give(holder{client: bob})
		}
		if q.total != 0 || len(q.clients)+len(q.services) != 0 {
			t.Errorf("of %d: with all given back, %d are counted for %d clients", c.limit, q.total, len(q.clients))
		}
	}
}

// However many clients a service port has, it leaves a quarter to others.
func TestSharesOfServices(t *testing.T) {
	for _, c := range []struct {
		limit, first, next int // the most that a first and a next service port get
	}{
		{3, 3, 3}, // where nothing would be left to others, they share
		{4, 3, 2}, {8, 6, 4}, {16, 12, 8}, {65_536, 49_152, 32_768},
	} {
		q := newQuota(c.limit)
		client := memoryClient.Addr()
		hog := func(s *service) (n int) {
			for range c.limit { // each client has one
				if client = client.Next(); !q.take(holder{client, s}) {
					break
				}
				n++
			}
			return n
		}
		if first, next := hog(&service{}), hog(&service{}); first != c.first || next != c.next {
			t.Errorf("of %d: the first service port gets %d and the next %d, want %d and %d", c.limit, first, next, c.first, c.next)
		}
	}
}

func TestRefusedFlowsAreNotCounted(t *testing.T) {
	q := newQuota(2)
	for client, want := range map[netip.Addr]bool{alice: true, bob: true} {
		if got := q.take(holder{client: client}); got != want {
			t.Errorf("%v: got %v, want %v", client, got, want)
		}
	}
	if q.take(holder{client: alice}) || q.total != 2 || len(q.clients) != 2 {
		t.Errorf("the second of one client is refused, and then %d are counted for %d clients; want 2 for 2", q.total, len(q.clients))
	}
	b := bound{limit: 1}
	if !b.take() || b.take() || b.taken.Load() != 1 {
		t.Errorf("of one, %d are counted", b.taken.Load())
	}
	if b.give(); !b.take() {
		t.Error("what was given back cannot be had")
	}
}

func TestClientsAreToldApart(t *testing.T) {
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
	} {
		if got := clientKey(netip.MustParseAddr(c.addr), c.origin); got != netip.MustParseAddr(c.want) {
			t.Errorf("%s, origin %d: got %v, want %s", c.addr, c.origin, got, c.want)
		}
	}
}

// One client who opens all the connections he can leaves room for another one.
func TestOneClientDoesNotUseUpConnections(t *testing.T) {
	w := newWorld(t, Config{Connections: 16}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, named(t))
	for range 8 {
		readName(t, dialFrom(t, "127.0.0.2", at))
	}
	for range 20 {
		c, err := net.DialTCP("tcp4", &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}, net.TCPAddrFromAddrPort(at))
		if err != nil {
			continue // It was reset before it knew that it was there.
		}
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("got %d bytes and error %v, want no more than half of all connections for one client", n, err)
		}
		shut(c)
	}
	readName(t, dialFrom(t, "127.0.0.3", at))
	if s := w.Stats(); s.Crowded != 20 || s.Connections != 9 {
		t.Errorf("got %d connections and %d too many, want 9 and 20", s.Connections, s.Crowded)
	}
}

// The same holds for sessions.
func TestOneClientDoesNotUseUpSessions(t *testing.T) {
	w := newWorld(t, Config{Sessions: 16}, v1.ProtocolUDP)
	at := w.packets(t)
	w.serveAt(at, echo(t))
	for range 8 {
		askerFrom(t, "127.0.0.2", at).who(t)
	}
	for range 20 {
		if _, err := askerFrom(t, "127.0.0.2", at).Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "20 datagrams are too many", func() bool { return w.Stats().Crowded == 20 })
	askerFrom(t, "127.0.0.3", at).who(t)
	eventually(t, "there are 9 sessions", func() bool { return w.Stats().Sessions == 9 })
}

// However few connections there may be, each door serves.
func TestFewConnectionsForManyDoors(t *testing.T) {
	w := newWorld(t, Config{Connections: 1}, v1.ProtocolTCP)
	want := named(t)
	var doors []netip.AddrPort
	for range 6 {
		doors = append(doors, w.listen(t))
	}
	for range 3 {
		for _, at := range doors {
			w.serveAt(at, want)
			c := dialTo(t, at)
			if got := readName(t, c); got != want.String() {
				t.Fatalf("got %s, want %v", got, want)
			}
			shut(c)
			eventually(t, "the connection is over", func() bool { return w.Stats().Connections == 0 && len(w.tasks.slots) == 0 })
		}
	}
}
