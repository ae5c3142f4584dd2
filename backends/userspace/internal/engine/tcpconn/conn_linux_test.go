package tcpconn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newPoller returns a poller that is closed when the test has ended.
func newPoller(t *testing.T) *Poller {
	t.Helper()
	p := &Poller{}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// listen returns a listener at a loopback address.
func (p *Poller) listen(t *testing.T) listener {
	t.Helper()
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	testenv.NoError(t, err)
	l, err := p.Listen(tcp)
	testenv.NoError(t, err)
	got, ok := l.(listener)
	if !ok {
		t.Fatalf("got a %T, want a listener of this package", l)
	}
	t.Cleanup(func() { shut(got) })
	return got
}

// connPair returns both ends of a connection.
func connPair(t *testing.T) (a, b *Conn) {
	t.Helper()
	p := newPoller(t)
	l := p.listen(t)
	fd, err := Begin(netip.AddrPort{}, l.local)
	testenv.NoError(t, err)
	one, err := p.Connect(t.Context(), fd, l.local, time.Minute)
	testenv.NoError(t, err)
	two, err := l.Accept()
	testenv.NoError(t, err)
	a, aOK := one.(*Conn)
	b, bOK := two.(*Conn)
	if !aOK || !bOK {
		t.Fatalf("got %T and %T, want connections of this package", one, two)
	}
	t.Cleanup(func() { shut(a); shut(b) })
	return a, b
}

// shut closes c; its error does not matter to a test.
func shut(c io.Closer) { _ = c.Close() }

// eventually waits, for a bounded time, until a condition holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// memory lends buffers.
type memory struct{}

func (memory) Get() *[]byte {
	b := make([]byte, 16<<10)
	return &b
}

func (memory) Put(*[]byte) {}

// owner records that CloseWrite was called.
type owner struct{ ended atomic.Bool }

func (o *owner) Used(net.Conn, int) {}

func (o *owner) CloseWrite(to net.Conn) error {
	o.ended.Store(true)
	c, _ := to.(*Conn)
	return c.CloseWrite()
}

func TestConnectionsCarryData(t *testing.T) {
	t.Parallel()
	a, b := connPair(t)
	if a.RemoteAddr().String() != b.LocalAddr().String() || a.RemoteAddr().Network() != "tcp" {
		t.Errorf("remote address: got %v (%s), want the other end's, %v (tcp)", a.RemoteAddr(), a.RemoteAddr().Network(), b.LocalAddr())
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
		t.Errorf("got %d bytes and error %v, want the %d sent bytes", len(got), err, len(want))
	}
	wg.Wait()
}

// Data that was read and could not be written at once is kept in the Direction, for the
// caller.
func TestExchangeKeepsUnsentData(t *testing.T) {
	t.Parallel()
	source, from := connPair(t)
	to, _ := connPair(t)
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
	d := &Direction{From: from, To: to}
	x := exchange{memory{}, &owner{}}
	for end := time.Now().Add(10 * time.Second); d.Unsent == nil; time.Sleep(time.Millisecond) {
		from.readable.Store(true)
		simple, err := x.passOn(from, to, d)
		if err != nil || !simple && string(d.Unsent) != "second" || time.Now().After(end) {
			t.Fatalf("unsent data: got %q and error %v, want %q", d.Unsent, err, "second")
		}
	}
	if d.Buffer == nil {
		t.Error("the buffer of the unsent data is missing")
	}
}

// Closing wakes waiting goroutines, and a descriptor is never closed while a system call uses
// it: its number could be another connection's by then.
func TestConnectionsCanBeClosedAtAnyTime(t *testing.T) {
	t.Parallel()
	for range 20 {
		a, _ := connPair(t)
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
		if n := a.calls.Load(); n != closing {
			t.Errorf("system calls under way: got %d, want none", n-closing)
		}
	}
}

func TestUsedDescriptorsStayOpen(t *testing.T) {
	t.Parallel()
	a, _ := connPair(t)
	if !a.beginCall() {
		t.Fatal("an open connection cannot be used")
	}
	testenv.NoError(t, a.Close())
	if _, err := unix.FcntlInt(uintptr(a.fd), unix.F_GETFD, 0); err != nil {
		t.Errorf("the descriptor is closed while it is used: %v", err)
	}
	if a.beginCall() {
		t.Error("a closed connection can be used")
	}
	a.endCall()
}

// SyscallConn gives access to the descriptor of an open connection.
func TestSyscallConnGivesTheDescriptor(t *testing.T) {
	t.Parallel()
	a, _ := connPair(t)
	raw, err := a.SyscallConn()
	testenv.NoError(t, err)
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

// fullListener returns the address of a listener whose queue is full: the kernel answers
// no client until makeRoom is called.
func fullListener(t *testing.T) (at netip.AddrPort, makeRoom func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	testenv.NoError(t, errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)))
	if at, err = localAddr(fd); err != nil {
		t.Fatal(err)
	}
	c, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(at))
	testenv.NoError(t, err)
	t.Cleanup(func() { shut(c) })
	return at, func() {
		conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		testenv.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(conn) })
	}
}

// If a server has answered in time, connecting succeeds, even if the event arrives too late,
// as it may on a busy machine.
func TestConnectedDespiteLateEvent(t *testing.T) {
	t.Parallel()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	testenv.NoError(t, err)
	silent := &Poller{fd: epoll, file: os.NewFile(uintptr(epoll), "epoll")} // wakes no goroutine
	defer shut(silent.file)
	at, makeRoom := fullListener(t)
	fd, err := Begin(netip.AddrPort{}, at)
	testenv.NoError(t, err)
	s := newConn(silent, fd)
	s.remote = at
	defer shut(s)
	makeRoom() // for the kernel's next attempt, in a second
	if err := s.connected(t.Context(), 2500*time.Millisecond); err != nil {
		t.Errorf("the server has answered: got error %v, want none", err)
	}
}

func TestSilentServersAreGivenUp(t *testing.T) {
	p := newPoller(t)
	at, _ := fullListener(t)
	connect := func(ctx context.Context, to netip.AddrPort, patience time.Duration) error {
		fd, err := Begin(netip.AddrPort{}, to)
		if err == nil {
			_, err = p.Connect(ctx, fd, to, patience)
		}
		return err
	}
	start := time.Now()
	if err := connect(t.Context(), at, 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("Connect gave up after %v, want at least 50 ms", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := connect(ctx, at, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	if err := connect(t.Context(), refusing(t), time.Hour); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("without a listener: got error %v, want %v", err, unix.ECONNREFUSED)
	}
}

// refusing returns an address that refuses connections. No program can listen at it before the
// test ends, since it is the local address of a connection.
func refusing(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	testenv.NoError(t, err)
	t.Cleanup(func() { shut(l) })
	c, err := net.Dial("tcp4", l.Addr().String())
	testenv.NoError(t, err)
	t.Cleanup(func() { shut(c) })
	return addrPortOf(c.LocalAddr())
}

// A poller is open as soon as it has a listener. If it opened later, the number of a proxy's
// descriptors would grow at a time that nothing explains.
func TestPollersStartWithTheFirstListener(t *testing.T) {
	t.Parallel()
	p := newPoller(t)
	if p.file != nil {
		t.Error("a poller without connections is open")
	}
	p.listen(t)
	file := p.file
	if file == nil {
		t.Fatal("the poller has a listener and is not open")
	}
	p.listen(t)
	if p.file != file {
		t.Error("a second listener has opened another poller")
	}
}

// A side that has sent everything is woken once more if its last event arrives late. If
// the event were not cleared, the goroutine of the connection would spin until the other side
// has sent everything, too.
func TestLateEventsDoNotSpin(t *testing.T) {
	t.Parallel()
	client, near := connPair(t)
	upstream, far := connPair(t)
	d := [2]Direction{{From: client, To: upstream}, {From: upstream, To: client}}
	o := &owner{}
	ended := make(chan error, 1)
	go func() { ended <- Exchange(&d, memory{}, o) }()
	testenv.NoError(t, near.CloseWrite())
	eventually(t, "the end of the client was passed on", o.ended.Load)
	for range 3 {
		client.wakeReader()
		eventually(t, "the event was cleared", func() bool { return !client.readable.Load() })
	}
	_, err := far.Write([]byte("answer"))
	if err = errors.Join(err, far.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || !d[0].Ended || !d[1].Ended {
		t.Errorf("ended: got %v and %v, error %v, want true and true, no error", d[0].Ended, d[1].Ended, err)
	}
	var got [10]byte
	if n, err := near.Read(got[:]); string(got[:n]) != "answer" {
		t.Errorf("the client got %q and error %v, want the answer", got[:n], err)
	}
}
