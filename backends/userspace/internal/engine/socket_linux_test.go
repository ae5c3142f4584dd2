package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// socketPair gives both ends of a connection between sockets of an engine.
func socketPair(t *testing.T) (a, b *socket) {
	t.Helper()
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	l := w.listener(t)
	t.Cleanup(func() { shut(l) })
	fd, err := Begin(netip.AddrPort{}, addrOf(l.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	one, err := w.await(t.Context(), fd, addrOf(l.Addr()), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	two, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	a, aOK := one.(*socket)
	b, bOK := two.(*socket)
	if !aOK || !bOK {
		t.Fatalf("got %T and %T, want sockets", one, two)
	}
	t.Cleanup(func() { shut(a); shut(b) })
	return a, b
}

func TestSocketsCarryData(t *testing.T) {
	a, b := socketPair(t)
	if a.RemoteAddr().String() != b.LocalAddr().String() || a.RemoteAddr().Network() != "tcp" {
		t.Errorf("one leads to %v, the other is at %v", a.RemoteAddr(), b.LocalAddr())
	}
	want := bytes.Repeat([]byte("0123456789"), 1<<20)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := a.Write(want) // more than the kernel takes at once
		if err = errors.Join(err, a.CloseWrite()); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes and error %v, want the %d that were sent", len(got), err, len(want))
	}
	wg.Wait()
}

// What one side has said and the other does not take yet is kept for whoever goes on.
func TestPassingOnKeepsTheRest(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	source, from := socketPair(t)
	to, _ := socketPair(t)
	full := errors.New("nothing was refused")
	for full != nil && !errors.Is(full, unix.EAGAIN) {
		full = to.control(func(fd int) error {
			n, err := writeNow(fd, make([]byte, 1<<16))
			if err == nil && n > 0 {
				return errors.New("there is more room")
			}
			return err
		})
	}
	if _, err := source.Write([]byte("second")); err != nil {
		t.Fatal(err)
	}
	way := &way{from: from, to: to}
	for end := time.Now().Add(10 * time.Second); way.rest == nil; time.Sleep(time.Millisecond) {
		from.readable.Store(true)
		simple, err := w.passOn(&link{}, from, to, way)
		if err != nil || !simple && string(way.rest) != "second" || time.Now().After(end) {
			t.Fatalf("%q is kept (error %v), want %q", way.rest, err, "second")
		}
	}
	w.buffers.small.put(way.buf)
}

// Whoever waits for a socket is told when it is closed, and a descriptor is never
// closed while somebody uses it: it could be another connection's by then.
func TestSocketsCanBeClosedByAnybody(t *testing.T) {
	for range 20 {
		a, _ := socketPair(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("reading: got error %v, want %v", err, net.ErrClosed)
			}
		})
		wg.Go(func() {
			for {
				if _, err := a.Write(make([]byte, 1<<20)); err != nil {
					if !errors.Is(err, net.ErrClosed) {
						t.Errorf("writing: got error %v, want %v", err, net.ErrClosed)
					}
					return
				}
			}
		})
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if err := a.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("closing again: got error %v, want %v", err, net.ErrClosed)
		}
		if n := a.uses.Load(); n != closing {
			t.Errorf("got %d uses left, want none", n-closing)
		}
	}
}

func TestUsedDescriptorsStayOpen(t *testing.T) {
	a, _ := socketPair(t)
	if !a.use() {
		t.Fatal("an open socket cannot be used")
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(a.fd), unix.F_GETFD, 0); err != nil {
		t.Errorf("the descriptor is closed while it is used: %v", err)
	}
	if a.use() {
		t.Error("a closed socket can be used")
	}
	a.unuse()
}

// Connections of package net, from a listener or dialer of somebody else, are
// carried like the engine's own.
func TestForeignConnectionsBecomeSockets(t *testing.T) {
	w := newWorld(t, Config{Hooks: Hooks{Dial: dialAny}}, v1.ProtocolTCP)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.open(t, Door{Listener: l})
	at := addrOf(l.Addr())
	want := named(t)
	w.serveAt(at, want)
	name, c := whoAt(t, at)
	if name != want.String() {
		t.Errorf("got %s, want %v", name, want)
	}
	links := w.links()
	if len(links) != 1 {
		t.Errorf("%d connections are carried, want 1", len(links))
	}
	for _, l := range links {
		l.mu.Lock()
		for _, side := range []net.Conn{l.client, l.upstream} {
			if s, ok := side.(*socket); !ok || !s.remote.IsValid() || !s.local.IsValid() {
				t.Errorf("a side of the connection is %T (%+v), want a socket with its addresses", side, side)
			}
		}
		l.mu.Unlock()
	}
	shut(c)
	eventually(t, "the connection is over", func() bool { return w.Stats().Connections == 0 })
}

// Whoever wants to know more of a connection gets at its descriptor, as long as it
// is open.
func TestDescriptorsCanBeAsked(t *testing.T) {
	a, _ := socketPair(t)
	raw, err := a.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	domain := 0
	ask := func(fd uintptr) { domain, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN) }
	if e := raw.Control(ask); e != nil || err != nil || domain != unix.AF_INET {
		t.Errorf("got domain %d and errors %v, %v, want %d", domain, e, err, unix.AF_INET)
	}
	shut(a)
	if e := raw.Control(ask); !errors.Is(e, net.ErrClosed) {
		t.Errorf("closed: got error %v, want %v", e, net.ErrClosed)
	}
}

// deafListener gives an address at which the queue is full: the kernel answers
// nobody, until there is room for one more.
func deafListener(t *testing.T) (at netip.AddrPort, makeRoom func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	if at, err = localAddr(fd); err != nil {
		t.Fatal(err)
	}
	dialTo(t, at)
	return at, func() {
		conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(conn) })
	}
}

// An endpoint that has answered in time is none to give up because nobody was told
// before the time was up, as it is where many others want the processors.
func TestAnswersAreSeenInTheEnd(t *testing.T) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	silent := &poller{fd: epoll, file: os.NewFile(uintptr(epoll), "epoll")} // tells nobody anything
	defer shut(silent.file)
	at, makeRoom := deafListener(t)
	fd, err := Begin(netip.AddrPort{}, at)
	if err != nil {
		t.Fatal(err)
	}
	s := newSocket(silent, fd)
	s.remote = at
	defer shut(s)
	makeRoom() // for the kernel's next attempt, in a second
	if err := s.connected(t.Context(), 2500*time.Millisecond); err != nil {
		t.Errorf("the endpoint has answered: got error %v, want none", err)
	}
}

func TestSilentEndpointsAreGivenUp(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	at, _ := deafListener(t)
	reach := func(ctx context.Context, patience time.Duration) error {
		_, err := w.reach(ctx, Dial{Protocol: v1.ProtocolTCP, To: at}, patience)
		return err
	}
	start := time.Now()
	if err := reach(t.Context(), 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("it was given up after %v, want 50 ms", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := reach(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	if err := func() error {
		_, err := w.reach(t.Context(), Dial{Protocol: v1.ProtocolTCP, To: refusing(t)}, time.Hour)
		return err
	}(); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("where nobody listens: got error %v, want %v", err, unix.ECONNREFUSED)
	}
}

// Both sides may say more at a time than anybody takes, and neither waits for the
// other: what one goroutine carries becomes too much for it in any moment.
func TestBothSidesTalkAtOnce(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	at := w.listen(t)
	const size = 8 << 20
	w.serveAt(at, server(t, func(c net.Conn) {
		_, _ = c.Write(make([]byte, size)) // before it reads anything
		n, _ := io.Copy(io.Discard, c)
		if n != size {
			t.Errorf("the endpoint got %d bytes, want %d", n, size)
		}
	}))
	for _, pieces := range []int{100, 16 << 10, 1 << 20} {
		c := dialTo(t, at)
		var wg sync.WaitGroup
		wg.Go(func() {
			for sent := 0; sent < size; {
				n, err := c.Write(make([]byte, min(pieces*50, size-sent)))
				if err != nil {
					t.Error(err)
					return
				}
				sent += n
			}
			_ = c.CloseWrite()
		})
		time.Sleep(time.Millisecond) // in most runs, the client's window is full by now
		n, err := io.Copy(io.Discard, c)
		if err != nil || n != size {
			t.Errorf("the client got %d bytes and error %v, want %d", n, err, size)
		}
		wg.Wait()
	}
	eventually(t, "all is over", func() bool { return w.Stats().Connections == 0 })
}

// Questions and answers of any size, one after the other on one connection.
func TestConversations(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	at := w.listen(t)
	w.serveAt(at, server(t, func(c net.Conn) { _, _ = io.Copy(c, c) }))
	c := dialTo(t, at)
	for i := range 400 {
		size := 1 + i*i%40_000
		want := bytes.Repeat([]byte{byte(i)}, size)
		got := make([]byte, size)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = c.Write(want) })
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("question %d of %d bytes: got another answer, or error %v", i, size, err)
		}
		wg.Wait()
	}
	_ = c.CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || len(rest) != 0 {
		t.Errorf("after the end: got %d bytes and error %v, want none", len(rest), err)
	}
}

// All that an engine needs to accept is open when its listener is, not some time
// after: who counts what a proxy has open would otherwise see it grow later on.
func TestListenersOpenEverythingAtOnce(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	if w.tasks.poller.file != nil {
		t.Error("an engine that serves nothing has a poller")
	}
	first := w.listener(t)
	defer shut(first)
	poller := w.tasks.poller.file
	if poller == nil {
		t.Fatal("there is a listener, and no poller yet")
	}
	second := w.listener(t)
	defer shut(second)
	if w.tasks.poller.file != poller {
		t.Error("a second listener has started another poller")
	}
}

// A side that has said everything is woken once more when its last event comes late.
// If that stayed with it, the goroutine of the connection would turn in a circle
// until the other side has said everything, too.
func TestLateEventsDoNotKeepAnybodyBusy(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	client, near := socketPair(t)
	upstream, far := socketPair(t)
	l := &link{client: client, upstream: upstream}
	ways := [2]way{{from: client, to: upstream}, {from: upstream, to: client}}
	ended := make(chan error, 1)
	go func() { ended <- w.converse(l, &ways) }()
	if err := near.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the client was passed on", l.half.Load)
	for range 3 {
		client.wakeReader()
		eventually(t, "the event was taken", func() bool { return !client.readable.Load() })
	}
	_, err := far.Write([]byte("answer"))
	if err = errors.Join(err, far.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || !ways[0].over || !ways[1].over {
		t.Errorf("over: %v and %v, error %v; want both and none", ways[0].over, ways[1].over, err)
	}
	var got [10]byte
	if n, err := near.Read(got[:]); string(got[:n]) != "answer" {
		t.Errorf("the client got %q and error %v, want the answer", got[:n], err)
	}
}
