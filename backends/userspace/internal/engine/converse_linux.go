package engine

import "golang.org/x/sys/unix"

// converse carries a connection with one goroutine, which waits for both sides at
// a time, as long as what they say goes through at once and in small pieces, as
// questions and answers do. It reads only what it was told is readable, and so
// hardly ever in vain. It ends when both ways are over, or when one needs more
// than that. The error says that the connection is lost.
func (e *Engine) converse(l *link, ways *[2]way) error {
	client, one := l.client.(*socket)
	upstream, two := l.upstream.(*socket)
	if !one || !two {
		return nil
	}
	upstream.both.Store(&client.in)
	defer upstream.both.Store(nil)
	client.readable.Store(true) // most clients begin
	for !ways[0].over || !ways[1].over {
		simple, err := e.passOn(l, client, upstream, &ways[0])
		if simple && err == nil {
			simple, err = e.passOn(l, upstream, client, &ways[1])
		}
		if err == nil && simple {
			err = awaitEither(client, upstream)
		}
		if err != nil || !simple {
			return err
		}
	}
	return nil
}

// awaitEither waits until one of two sockets can be read; both open the gate of a.
func awaitEither(a, b *socket) error {
	if a.readable.Load() || b.readable.Load() {
		return nil
	}
	for _, s := range []*socket{a, b} {
		if err := s.control(func(int) error { return s.watch(unix.EPOLLIN) }); err != nil {
			return err
		}
	}
	<-a.in
	return nil
}

// passOn carries what one side has said. It reports false if that was too much to
// do so simply, and leaves the rest to others.
func (e *Engine) passOn(l *link, from, to *socket, w *way) (simple bool, err error) {
	// What comes of a side that has said everything is taken, too, or nobody would
	// wait any more.
	if !from.readable.Swap(false) || w.over {
		return true, nil
	}
	n, err := 0, error(nil)
	buf := e.buffers.small.get()
	defer func() {
		if w.buf == nil {
			e.buffers.small.put(buf)
		}
	}()
	err = from.control(func(fd int) error {
		n, err = readNow(fd, *buf)
		return err
	})
	switch {
	case err == unix.EAGAIN: //nolint:errorlint // a system call gives the number itself
		return true, nil
	case err != nil:
		return false, err
	case n == 0:
		w.over = true
		return true, e.endHalf(l, to)
	}
	if from.ended.Load() {
		from.readable.Store(true) // Nobody will tell that there is more.
	}
	l.touch(e.now())
	sent := 0
	err = to.control(func(fd int) error {
		sent, err = writeNow(fd, (*buf)[:n])
		return err
	})
	if err != nil && err != unix.EAGAIN { //nolint:errorlint // a system call gives the number itself
		return false, err
	}
	if sent < n {
		w.buf, w.rest = buf, (*buf)[sent:n]
	}
	return sent == n && n < len(*buf), nil
}
