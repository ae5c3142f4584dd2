package tcpconn

import (
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// pipe is memory of the kernel through which data goes from one socket to another.
type pipe struct{ in, out int }

const (
	// pipeSize is how much a pipe may hold; the kernel allocates memory for its content only.
	pipeSize = 1 << 20
	// pause is for how long Splice waits for more. It holds a pipe, which a silent
	// connection should not hold.
	pause = 200 * time.Millisecond
)

func newPipe() (*pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, call("pipe2", err)
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize) // A smaller pipe works, too.
	return &pipe{in: fds[1], out: fds[0]}, nil
}

func (p *pipe) close() {
	// The pipe is empty, or its connection is lost: an error would change nothing.
	_ = unix.Close(p.in)
	_ = unix.Close(p.out)
}

// Splice moves data inside the kernel while more keeps arriving, and calls used each time
// that it has moved some bytes. It returns nil after 200 ms without data, and [io.EOF] at the end of
// the data. If to is not a [Conn], or a pipe cannot be opened, Splice moves nothing and returns
// nil.
func (c *Conn) Splice(to net.Conn, used func(to net.Conn, n int)) error {
	target, ok := to.(*Conn)
	if !ok {
		return nil
	}
	p, err := newPipe()
	if err != nil {
		return nil // Data goes through memory.
	}
	defer p.close()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		n, err := c.fill(p, timer)
		if n == 0 || err != nil {
			return err
		}
		if err := target.empty(p, n); err != nil {
			return err
		}
		used(to, n)
	}
}

// fill moves data into a pipe, and returns how much; 0 if none arrived during a pause.
func (c *Conn) fill(p *pipe, timer *time.Timer) (n int, err error) {
	for {
		err = c.control(func(fd int) error {
			n, err = spliceNow(fd, p.in, pipeSize)
			if errors.Is(err, unix.EAGAIN) {
				return c.waiting(unix.EPOLLIN)
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
		timer.Reset(pause)
		select {
		case <-c.in:
		case <-timer.C:
			return 0, nil
		}
	}
}

// empty sends the n bytes that a pipe holds.
func (c *Conn) empty(p *pipe, n int) error {
	for n > 0 {
		err := c.retry(c.out, unix.EPOLLOUT, func(fd int) error {
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
