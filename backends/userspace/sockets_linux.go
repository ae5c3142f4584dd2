package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// sockets makes sockets in the network namespace of the backend.
type sockets struct {
	ns *netns.NS
	// own says that this is the namespace of the whole process, so that any
	// thread will do.
	own bool
	// ports counts the ports from which connections are made; those of
	// datagrams are lent by packetPorts, since the kernel does not see to it
	// that no two sockets have both ends in common.
	ports       atomic.Uint32
	packetPorts *engine.Ports
}

func newSockets() (*sockets, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	begin := uint32(os.Getpid()) * 7919 // another process begins elsewhere
	s := &sockets{ns: ns, own: everywhere(), packetPorts: engine.NewPorts(firstSourcePort, sourcePorts, begin)}
	s.ports.Store(begin)
	return s, nil
}

// everywhere reports whether goroutines run in the namespace of the caller. Who
// is in another one has locked a thread there, so that a new goroutine gets one
// of the others.
func everywhere() bool {
	here, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	same := make(chan bool, 1)
	go func() {
		there, err := os.Stat("/proc/thread-self/ns/net")
		same <- err == nil && os.SameFile(here, there)
	}()
	return <-same
}

// do calls f where sockets come to be in the namespace of the backend.
func (s *sockets) do(f func() error) error {
	if s.own {
		return f()
	}
	return s.ns.Do(f)
}

// transparent lets a socket have addresses of others, and gives it the original
// destination of datagrams.
func transparent(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = makeTransparent(int(fd)) }); e != nil {
		return e
	}
	return os.NewSyscallError("setsockopt", err)
}

func makeTransparent(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	if domain == unix.AF_INET6 {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
}

// reusable is transparent for sockets that share their port: connections are
// told apart by both ends.
func reusable(network, address string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }); e != nil {
		return e
	}
	if err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return transparent(network, address, c)
}

// listen opens a door for connections.
func (s *sockets) listen(ctx context.Context, at netip.AddrPort, e *engine.Engine) (net.Listener, error) {
	var l net.Listener
	err := s.do(func() (err error) {
		c := net.ListenConfig{Control: listening, KeepAlive: -1}
		c.SetMultipathTCP(false) // endpoints would not get more than one path
		l, err = c.Listen(ctx, "tcp", at.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return l, nil
	}
	return e.Listener(tcp)
}

// listening is transparent for a socket that accepts connections. They inherit
// from it that clients which have vanished are noticed, at no cost for each.
func listening(network, address string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = keepAlive(int(fd)) }); e != nil {
		return e
	}
	if err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return transparent(network, address, c)
}

func keepAlive(fd int) error {
	const seconds, probes = 15, 9
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPIDLE, seconds),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPINTVL, seconds),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPCNT, probes),
	)
}

// open opens all doors of the backend.
func (b *Backend) open(ctx context.Context) error {
	if b.doors != nil {
		return nil
	}
	o := &opening{Backend: b}
	for _, fam := range b.renderer.families() {
		replier, err := b.sockets.replier(fam)
		if err != nil {
			return errors.Join(err, o.close())
		}
		o.closers = append(o.closers, replier)
		for _, d := range doors() {
			if err := o.door(ctx, d, fam, replier); err != nil {
				return errors.Join(fmt.Errorf("userspace: listening at %v: %w", d.address(&b.options, fam), err), o.close())
			}
		}
	}
	for _, start := range o.starts {
		b.wg.Go(start)
	}
	b.doors = o.closers
	return nil
}

type closer interface{ Close() error }

// opening is what has been opened so far.
type opening struct {
	*Backend
	closers []closer
	starts  []func()
}

func (o *opening) close() error { return closeAll(o.closers) }

func closeAll(all []closer) error {
	var errs []error
	for _, c := range all {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (o *opening) door(ctx context.Context, d door, fam nfnetlink.Family, r *replier) error {
	at := d.address(&o.options, fam)
	l, err := o.sockets.listen(ctx, at, o.engine)
	if err != nil {
		return err
	}
	o.closers = append(o.closers, l)
	p, err := o.sockets.packets(ctx, at)
	if err != nil {
		return err
	}
	o.closers = append(o.closers, p)
	o.starts = append(o.starts,
		func() { _ = o.engine.Serve(engine.Door{Listener: l, Origin: d.origin()}) }, // it ends when the door is closed
		func() { _ = o.engine.ServePackets(&packetDoor{UDPConn: p, origin: d.origin(), replier: r}) })
	return nil
}
