package engine

import (
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// pipe is memory of the kernel through which data goes from one socket to another.
type pipe struct{ in, out int }

// pipeSize is how much may be in it; memory is taken for what is in it only.
const pipeSize = 1 << 20

func newPipe() (*pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, call("pipe2", err)
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize) // where that is not allowed, a small one works too
	return &pipe{in: fds[1], out: fds[0]}, nil
}

func (p *pipe) close() {
	_ = unix.Close(p.in)  // It is empty, or its connection is lost.
	_ = unix.Close(p.out) // It is empty, or its connection is lost.
}

// burstSockets moves bulk data, as long as it keeps coming.
func (e *Engine) burstSockets(l *link, to, from *socket) error {
	if !e.tasks.pipes.take() {
		return nil // It goes through memory.
	}
	defer e.tasks.pipes.give()
	p, err := newPipe()
	if isShortage(err) {
		return nil // It goes through memory.
	}
	if err != nil {
		return err
	}
	defer p.close()
	timer := time.NewTimer(lull)
	defer timer.Stop()
	for {
		n, err := from.fill(p, timer)
		if n == 0 || err != nil {
			return err
		}
		if err := to.empty(p, n); err != nil {
			return err
		}
		l.touch(e.now())
	}
}

// fill gives how much has come; nothing, if it took too long.
func (s *socket) fill(p *pipe, timer *time.Timer) (n int, err error) {
	for {
		err = s.control(func(fd int) error {
			n, err = spliceNow(fd, p.in, pipeSize)
			if errors.Is(err, unix.EAGAIN) {
				return s.later(unix.EPOLLIN)
			}
			return err
		})
		switch {
		case err == nil && n == 0:
			return 0, io.EOF
		case err == nil:
			return n, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN):
			return 0, call("splice", err)
		}
		timer.Reset(lull)
		select {
		case <-s.in:
		case <-timer.C:
			return 0, nil
		}
	}
}

// empty sends what is in a pipe.
func (s *socket) empty(p *pipe, n int) error {
	for n > 0 {
		err := s.try(s.out, unix.EPOLLOUT, func(fd int) error {
			sent, err := spliceNow(p.out, fd, n)
			n -= sent
			return err
		})
		if err != nil {
			return call("splice", err)
		}
	}
	return nil
}

// burstOf gives what moves bulk data between two connections; nil where nothing
// does.
func (e *Engine) burstOf(l *link, to, from net.Conn) func() error {
	target, one := to.(*socket)
	source, two := from.(*socket)
	if one && two {
		return func() error { return e.burstSockets(l, target, source) }
	}
	return e.burstConns(l, to, from)
}
