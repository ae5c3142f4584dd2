package rawnetlink

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testenv"
)

// A listener gets the notifications of its groups, which name the connection that made the
// change, and no others.
func TestListener(t *testing.T) {
	c := openInNamespace(t)
	own, err := c.Port()
	testenv.NoError(t, err)
	l, err := Listen(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR)
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, l)
	var r Requests
	a := netip.MustParseAddr("10.0.0.1")
	addAddress(&r, a)
	if failed, err := c.Do(t.Context(), &r); err != nil || len(failed) > 0 {
		t.Fatalf("Do: got failures %v and error %v", failed, err)
	}
	messages, err := l.Receive(t.Context())
	testenv.NoError(t, err)
	m, ok := messages.Next()
	if !ok || m.Type != unix.RTM_NEWADDR || m.Port != own {
		t.Fatalf("got message %+v, want one about a new address by port %d", m, own)
	}
	if got := Attrs(m.Payload[unix.SizeofIfAddrmsg:]).Find(unix.IFA_LOCAL); string(got) != string(a.AsSlice()) {
		t.Errorf("got address %v, want %v", got, a)
	}
}

// Receive ends with its context, whether that ends before or during it, and may be called again.
func TestReceiveEnds(t *testing.T) {
	c := openInNamespace(t)
	l, err := Listen(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR)
	testenv.NoError(t, err)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if _, err := l.Receive(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("Receive: got error %v, want %v", err, context.Canceled)
		}
	}
	var r Requests
	addAddress(&r, netip.MustParseAddr("10.0.0.1"))
	if _, err := c.Do(t.Context(), &r); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Receive(t.Context()); err != nil {
		t.Errorf("Receive after canceled ones: got error %v", err)
	}
	testenv.NoError(t, l.Close())
	if _, err := l.Receive(t.Context()); err == nil {
		t.Error("Receive after Close: got no error")
	}
}

// Notifications that do not fit into the receive buffer are reported as lost.
func TestMissedNotifications(t *testing.T) {
	c := openInNamespace(t)
	l, err := Listen(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR)
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, l)
	if err := l.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) }); err != nil {
		t.Fatal(err)
	}
	testenv.NoError(t, err)
	var r Requests
	for i := range 5000 {
		addAddress(&r, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	if failed, err := c.Do(t.Context(), &r); err != nil || len(failed) > 0 {
		t.Fatalf("Do: got %d failures and error %v", len(failed), err)
	}
	for range 5000 {
		if _, err = l.Receive(t.Context()); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrMissed) {
		t.Errorf("Receive: got error %v, want %v", err, ErrMissed)
	}
}

// Replies that a call left are read before the next request: they would fill a small receive
// buffer, and later replies would be lost.
func TestUnreadReplies(t *testing.T) {
	c := openInNamespace(t)
	testenv.NoError(t, unix.SetsockoptInt(c.socket.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096))
	var ask Requests
	ask.End(append(ask.Begin(unix.RTM_GETADDR, unix.NLM_F_DUMP), make([]byte, unix.SizeofIfAddrmsg)...))
	for range 50 { // as calls that end before they have read the reply
		testenv.NoError(t, c.begin())
		testenv.NoError(t, c.socket.Send(ask.buf))
		if got := len(addresses(t, c)); got != 0 {
			t.Fatalf("addresses: got %d, want none", got)
		}
	}
}
