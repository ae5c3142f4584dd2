package engine

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// poller tells sockets when they can be read and written. It has an epoll
// instance of its own, for which the poller of the runtime waits. A socket comes
// to it only when somebody waits, and leaves it by being closed: many connections
// are over before anybody has to.
type poller struct {
	mu      sync.Mutex
	fd      int      // of the epoll instance
	file    *os.File // what the runtime knows it by; nil before it is started
	done    chan struct{}
	sockets []*socket // by the number that epoll has for them
	free    []int32
}

// start is for who knows that somebody is going to wait, so that what the poller
// has open is there from then on. It starts at most once.
func (p *poller) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.started()
}

// started is start, for who has the lock.
func (p *poller) started() error {
	if p.file != nil {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return call("epoll_create1", err)
	}
	// The runtime polls only what does not block.
	if err := unix.SetNonblock(fd, true); err != nil {
		return errors.Join(call("fcntl", err), unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	p.fd, p.file, p.done = fd, file, make(chan struct{})
	go p.run(raw)
	return nil
}

// Close ends the poller. Nobody may wait any more.
func (p *poller) Close() error {
	p.mu.Lock()
	file := p.file
	p.mu.Unlock()
	if file == nil {
		return nil
	}
	err := file.Close()
	<-p.done
	return err
}

// run wakes those who wait, until the poller is closed.
func (p *poller) run(raw syscall.RawConn) {
	defer close(p.done)
	var events [128]unix.EpollEvent
	_ = raw.Read(func(fd uintptr) bool {
		for {
			n, err := pollNow(fd, events[:])
			p.wake(events[:n])
			if err != nil || n < len(events) {
				return false // The runtime says when there is more, or that it was closed.
			}
		}
	})
}

func (p *poller) wake(events []unix.EpollEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range events {
		e := &events[i]
		s := p.sockets[e.Fd]
		if s == nil {
			continue // It has been closed since.
		}
		if e.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			s.ended.Store(true)
		}
		if e.Events&^unix.EPOLLOUT != 0 {
			s.wakeReader()
		}
		if e.Events&^(unix.EPOLLIN|unix.EPOLLRDHUP) != 0 {
			s.out.open()
		}
	}
}

// watch has a socket woken for what it waits for. Each time it waits for
// something else than before, it must be called again.
func (p *poller) watch(s *socket, events uint32) error {
	op := unix.EPOLL_CTL_MOD
	if s.number < 0 {
		op = unix.EPOLL_CTL_ADD
		if err := p.enter(s); err != nil {
			return err
		}
	}
	return call("epoll_ctl", unix.EpollCtl(p.fd, op, s.fd, &unix.EpollEvent{
		Events: events | unix.EPOLLET | unix.EPOLLRDHUP, Fd: s.number,
	}))
}

// enter gives a socket its number.
func (p *poller) enter(s *socket) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.started(); err != nil {
		return err
	}
	if n := len(p.free); n > 0 {
		s.number = p.free[n-1]
		p.free = p.free[:n-1]
		p.sockets[s.number] = s
		return nil
	}
	s.number = int32(len(p.sockets))
	p.sockets = append(p.sockets, s)
	return nil
}

// leave forgets a socket that is closed.
func (p *poller) leave(number int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sockets[number] = nil
	p.free = append(p.free, number)
}

// gate lets one wait for another.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

// open lets the one through who waits, or the next one who will.
func (g gate) open() {
	select {
	case g <- struct{}{}:
	default:
	}
}
