package storm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
)

// traffic makes connections. Its methods may be called from any goroutine.
type traffic struct {
	stations map[client]*station
}

// station makes the connections of one client.
type station struct {
	from  client
	made  atomic.Uint64
	tasks chan func() // carried out on a thread that stays in the namespace
}

func newTraffic(t testing.TB, w *world) *traffic {
	t.Helper()
	tr := &traffic{stations: map[client]*station{}}
	var threads sync.WaitGroup
	for _, c := range allClients() {
		ns := w.node
		if leaf, _ := c.leaf(); leaf != "" {
			ns = w.lab.NS(leaf)
		}
		s := &station{from: c, tasks: make(chan func())}
		tr.stations[c] = s
		threads.Go(func() { s.runTasks(t, ns) })
	}
	t.Cleanup(func() {
		for _, s := range tr.stations {
			close(s.tasks)
		}
		threads.Wait()
	})
	return tr
}

func (s *station) runTasks(t testing.TB, ns *netns.NS) {
	err := ns.Do(func() error {
		for task := range s.tasks {
			task()
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Each connection of a client comes from another address or port, until all have been used.
// The ports are neither those that backends/userspace uses nor node ports.
const (
	sourceAddrs = 50
	firstPort   = 33_000
	sourcePorts = 28_000
)

// source returns the source of the next connection.
func (s *station) source(f flight) netip.AddrPort {
	n := s.made.Add(1)
	family := f.family()
	leaf, prefix := s.from.leaf()
	if f.source.IsValid() {
		return netip.AddrPortFrom(f.source, uint16(firstPort+n%sourcePorts))
	}
	if leaf == "" {
		return netip.AddrPortFrom(everything(family).Addr(), uint16(firstPort+n%sourcePorts))
	}
	addr := nth(ofFamily(leaf, family, prefix), int(1+n%sourceAddrs))
	return netip.AddrPortFrom(addr, uint16(firstPort+n/sourceAddrs%sourcePorts))
}

// errNoTry says that a connection was not tried, for a reason that is not the dataplane's.
var errNoTry = errors.New("not tried")

// try makes a connection, and waits for the answer of the server or the end of the context.
func (tr *traffic) try(ctx context.Context, f flight, patience time.Duration) (got outcome) {
	s := tr.stations[f.from]
	source := s.source(f)
	made := make(chan error, 1)
	var fd int
	s.tasks <- func() {
		var err error
		fd, err = connect(f, source)
		made <- err
	}
	if got.err = <-made; got.err != nil {
		return got
	}
	got.source = localAddr(fd, source)
	file := os.NewFile(uintptr(fd), f.String())
	defer file.Close()                                          //nolint:errcheck // a reset loses no data that is needed
	stop := context.AfterFunc(ctx, func() { _ = file.Close() }) // It may be closed already.
	defer stop()
	buf := make([]byte, 256)
	n, err := readAnswer(file, f.protocol, buf, patience)
	switch {
	case ctx.Err() != nil:
		err = errNoTry
	case err == nil:
		got.answer, err = lab.ParseAnswer(string(buf[:n]))
	}
	got.err = err
	return got
}

// readAnswer waits for an answer. With UDP it sends the request again every second.
func readAnswer(file *os.File, protocol v1.Protocol, buf []byte, patience time.Duration) (n int, err error) {
	const again = time.Second
	end := time.Now().Add(patience)
	for {
		next := end
		if protocol == v1.ProtocolUDP {
			if _, err := file.Write([]byte("?\n")); err != nil {
				return 0, err
			}
			if sooner := time.Now().Add(again); sooner.Before(end) {
				next = sooner
			}
		}
		if err := file.SetReadDeadline(next); err != nil {
			return 0, err
		}
		n, err = file.Read(buf)
		if !errors.Is(err, os.ErrDeadlineExceeded) || !next.Before(end) {
			return n, err
		}
	}
}

// connect makes a socket in the namespace of the thread, and does not wait for it to be
// connected.
func connect(f flight, source netip.AddrPort) (fd int, err error) {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if f.family() == v1.IPv6Protocol {
		family = unix.AF_INET6
	}
	if f.protocol == v1.ProtocolUDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNoTry, err)
	}
	if f.protocol == v1.ProtocolTCP {
		// A reset leaves no connection in TIME_WAIT, neither here nor on the node.
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(source))
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("%w: from %v: %w", errNoTry, source, err), unix.Close(fd))
	}
	if err := unix.Connect(fd, sockaddr(f.to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// localAddr returns the address that a socket sends from.
func localAddr(fd int, bound netip.AddrPort) netip.AddrPort {
	if !bound.Addr().IsUnspecified() {
		return bound
	}
	switch a, _ := unix.Getsockname(fd); a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return bound
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
