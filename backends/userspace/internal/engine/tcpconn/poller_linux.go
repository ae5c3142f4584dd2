package tcpconn

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Poller wakes goroutines that wait for connections. It has an epoll instance of its own,
// for which the poller of the Go runtime waits. A connection is registered only when a
// goroutine waits for it: many connections end before that. Closing removes it.
// The zero value is ready for use. Its methods may be called from several goroutines at
// once.
type Poller struct {
	mu    sync.Mutex
	fd    int      // of the epoll instance
	file  *os.File // the same for the Go runtime; nil before the poller is started
	done  chan struct{}
	conns []*Conn // by the number in EpollEvent.Fd
	free  []int32
}

// start opens the epoll instance, if that has not happened yet.
func (p *Poller) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.startLocked()
}

// startLocked requires p.mu.
func (p *Poller) startLocked() error {
	if p.file != nil {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return call("epoll_create1", err)
	}
	// The runtime polls only nonblocking descriptors.
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

// Close ends the poller. No goroutine may wait for a connection any more.
func (p *Poller) Close() error {
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

// run wakes waiting goroutines until the poller is closed.
func (p *Poller) run(raw syscall.RawConn) {
	defer close(p.done)
	var events [128]unix.EpollEvent
	_ = raw.Read(func(fd uintptr) bool {
		for {
			n, err := pollNow(fd, events[:])
			p.wake(events[:n])
			if err != nil || n < len(events) {
				return false // The runtime calls again when there is more, unless the file was closed.
			}
		}
	})
}

func (p *Poller) wake(events []unix.EpollEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range events {
		e := &events[i]
		c := p.conns[e.Fd]
		if c == nil {
			continue // The connection has been closed since.
		}
		if e.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			c.ended.Store(true)
		}
		if e.Events&^unix.EPOLLOUT != 0 {
			c.wakeReader()
		}
		if e.Events&^(unix.EPOLLIN|unix.EPOLLRDHUP) != 0 {
			c.out.notify()
		}
	}
}

// watch registers a connection for events. It must be called again for other events.
func (p *Poller) watch(c *Conn, events uint32) error {
	op := unix.EPOLL_CTL_MOD
	if c.number < 0 {
		op = unix.EPOLL_CTL_ADD
		if err := p.register(c); err != nil {
			return err
		}
	}
	return call("epoll_ctl", unix.EpollCtl(p.fd, op, c.fd, &unix.EpollEvent{
		Events: events | unix.EPOLLET | unix.EPOLLRDHUP, Fd: c.number,
	}))
}

// register assigns a connection its number.
func (p *Poller) register(c *Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.startLocked(); err != nil {
		return err
	}
	if n := len(p.free); n > 0 {
		c.number = p.free[n-1]
		p.free = p.free[:n-1]
		p.conns[c.number] = c
		return nil
	}
	c.number = int32(len(p.conns))
	p.conns = append(p.conns, c)
	return nil
}

// forget removes a connection that is closed.
func (p *Poller) forget(number int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[number] = nil
	p.free = append(p.free, number)
}

// wakeup wakes one goroutine: the one that waits, or the next one that will.
type wakeup chan struct{}

func newWakeup() wakeup { return make(wakeup, 1) }

func (w wakeup) notify() {
	select {
	case w <- struct{}{}:
	default:
	}
}
