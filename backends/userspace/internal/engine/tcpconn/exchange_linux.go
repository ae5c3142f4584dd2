package tcpconn

import "golang.org/x/sys/unix"

// Exchange relays a connection in both directions on the calling goroutine, which waits
// for both sides at once. It does so while each piece of data fits into one read and one
// write, as requests and answers do. It reads only after epoll has reported data, so that
// few reads fail with EAGAIN. It returns when both directions have ended, when a piece was
// larger, or at once if one side is not a [Conn]; the directions hold the progress. An error
// means that the connection is lost.
func Exchange(d *[2]Direction, b Buffers, o Owner) error {
	one, oneOK := d[0].From.(*Conn)
	two, twoOK := d[0].To.(*Conn)
	if !oneOK || !twoOK {
		return nil
	}
	two.shared.Store(&one.in)
	defer two.shared.Store(nil)
	one.readable.Store(true) // most clients send first
	x := exchange{b, o}
	for !d[0].Ended || !d[1].Ended {
		simple, err := x.passOn(one, two, &d[0])
		if simple && err == nil {
			simple, err = x.passOn(two, one, &d[1])
		}
		if err == nil && simple {
			err = awaitEither(one, two)
		}
		if err != nil || !simple {
			return err
		}
	}
	return nil
}

// awaitEither waits until one of two connections is readable; both notify a.in.
func awaitEither(a, b *Conn) error {
	if a.readable.Load() || b.readable.Load() {
		return nil
	}
	for _, c := range []*Conn{a, b} {
		if err := c.control(func(int) error { return c.watch(unix.EPOLLIN) }); err != nil {
			return err
		}
	}
	<-a.in
	return nil
}

type exchange struct {
	buffers Buffers
	owner   Owner
}

// passOn relays what one side has sent. It reports false if that was too much for one
// read and one write; d then holds what was not written.
func (x exchange) passOn(from, to *Conn, d *Direction) (simple bool, err error) {
	// The event of a side that has ended is cleared, too: otherwise awaitEither would never
	// wait.
	if !from.readable.Swap(false) || d.Ended {
		return true, nil
	}
	n, err := 0, error(nil)
	buf := x.buffers.Get()
	defer func() {
		if d.Buffer == nil {
			x.buffers.Put(buf)
		}
	}()
	err = from.control(func(fd int) error {
		n, err = readNow(fd, *buf)
		return err
	})
	switch {
	case err == unix.EAGAIN: //nolint:errorlint // a system call returns the Errno itself
		return true, nil
	case err != nil:
		return false, err
	case n == 0:
		d.Ended = true
		return true, x.owner.CloseWrite(to)
	}
	if from.ended.Load() {
		from.readable.Store(true) // No event follows for the rest.
	}
	x.owner.Used(to, n)
	sent := 0
	err = to.control(func(fd int) error {
		sent, err = writeNow(fd, (*buf)[:n])
		return err
	})
	if err != nil && err != unix.EAGAIN { //nolint:errorlint // a system call returns the Errno itself
		return false, err
	}
	if sent < n {
		d.Buffer, d.Unsent = buf, (*buf)[sent:n]
	}
	return sent == n && n < len(*buf), nil
}
