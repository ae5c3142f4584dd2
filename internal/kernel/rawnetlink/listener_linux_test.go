package rawnetlink

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// listen returns a namespace and a listener to changes of its addresses.
func listen(t *testing.T) (ns *netns.NS, l *Listener) {
	t.Helper()
	ns = netnstest.NewNS(t)
	testenv.NoError(t, ns.Do(func() (err error) {
		l, err = Listen(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR)
		return err
	}))
	return ns, l
}

// addAddress adds an address to lo.
func addAddress(t *testing.T, ns *netns.NS, a netip.Addr) {
	t.Helper()
	at := &netlink.Addr{LinkIndex: 1, IPNet: netlink.NewIPNet(a.AsSlice())}
	testenv.NoError(t, ns.Netlink().AddrAdd(nil, at))
}

// A listener gets the notifications of its groups.
func TestListener(t *testing.T) {
	ns, l := listen(t)
	testenv.CloseAtEnd(t, l)
	a := netip.MustParseAddr("10.0.0.1")
	addAddress(t, ns, a)
	all, err := l.Receive(t.Context())
	testenv.NoError(t, err)
	m, ok := all.Next()
	if !ok || m.Type != unix.RTM_NEWADDR {
		t.Fatalf("got message %+v, want one about a new address", m)
	}
	if got := Attrs(m.Payload[unix.SizeofIfAddrmsg:]).Find(unix.IFA_LOCAL); string(got) != string(a.AsSlice()) {
		t.Errorf("got address %v, want %v", got, a)
	}
}

// Receive ends with its context, whether that ends before or during it, and may be called again.
func TestReceiveEnds(t *testing.T) {
	ns, l := listen(t)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if _, err := l.Receive(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("Receive: got error %v, want %v", err, context.Canceled)
		}
	}
	addAddress(t, ns, netip.MustParseAddr("10.0.0.1"))
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
	ns, l := listen(t)
	testenv.CloseAtEnd(t, l)
	var err error
	testenv.NoError(t, l.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) }))
	testenv.NoError(t, err)
	for i := range 100 {
		addAddress(t, ns, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
	}
	for range 100 {
		if _, err = l.Receive(t.Context()); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrMissed) {
		t.Errorf("Receive: got error %v, want %v", err, ErrMissed)
	}
}

// After Close, calls fail, and do not use another file that has the number of the file descriptor
// now.
func TestUseAfterClose(t *testing.T) {
	s, err := OpenSocket(unix.NETLINK_ROUTE, Buffers{}, time.Second)
	testenv.NoError(t, err)
	number := s.FD()
	testenv.NoError(t, s.Close())
	other, err := unix.FcntlInt(uintptr(os.Stdin.Fd()), unix.F_DUPFD_CLOEXEC, number)
	testenv.NoError(t, err)
	defer func() { _ = unix.Close(other) }() // The test has failed if it is closed.
	if err := s.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Close: got error %v, want %v", err, os.ErrClosed)
	}
	if _, err := s.Receive(0); !errors.Is(err, unix.EBADF) {
		t.Errorf("Receive after Close: got error %v, want %v", err, unix.EBADF)
	}
	if err := s.Send([]byte("x")); !errors.Is(err, unix.EBADF) {
		t.Errorf("Send after Close: got error %v, want %v", err, unix.EBADF)
	}
	if _, err := unix.FcntlInt(uintptr(other), unix.F_GETFD, 0); other == number && err != nil {
		t.Errorf("another file with the number %d: got error %v, want it to stay open", number, err)
	}
}
