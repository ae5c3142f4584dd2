package rawnetlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sendBuffer is the requested size in bytes of the send buffer. It exceeds maxSend by far.
	sendBuffer = 1 << 20
	// receiveBuffer is the requested size in bytes of the receive buffer. It holds an error
	// for each of maxRequests requests.
	receiveBuffer = 4 << 20
	// maxRequests and maxSend in bytes limit what one system call sends, so that the errors
	// of all requests fit into the receive buffer also without privileges.
	maxRequests = 128
	maxSend     = 128 << 10
	// answerTimeout limits the wait for a reply. The kernel has queued the reply when the
	// send returns, so a reply that is not in the queue then is lost.
	answerTimeout = 5 * time.Second
	// maxStale limits how many messages are read for one request.
	maxStale = 1 << 24
)

var (
	// ErrUnknownOutcome reports that requests were sent and their answers are missing: the
	// kernel may have carried them out or not.
	ErrUnknownOutcome = errors.New("netlink: the outcome of requests is unknown")
	// ErrInterrupted reports that a dump is not consistent, because objects changed.
	ErrInterrupted = errors.New("netlink: the dump was interrupted by changes")
)

// Conn is a connection to the kernel. Calls must not overlap.
type Conn struct {
	socket *Socket
	seq    uint32
	calls  uint64
	// unread is true if replies to the latest requests may be left in the socket.
	unread bool
}

// Open connects to a netlink protocol, such as NETLINK_GENERIC, in the network namespace of
// the calling thread. The connection stays in that namespace.
func Open(protocol int) (*Conn, error) {
	s, err := OpenSocket(protocol, Buffers{Send: sendBuffer, Receive: receiveBuffer}, answerTimeout)
	if err != nil {
		return nil, fmt.Errorf("netlink: open: %w", err)
	}
	return &Conn{socket: s}, nil
}

// Close closes the connection. It must be called once at most.
func (c *Conn) Close() error { return c.socket.Close() }

// Port is [Socket.Port].
func (c *Conn) Port() (uint32, error) { return c.socket.Port() }

// Calls returns how many system calls have sent requests so far.
func (c *Conn) Calls() uint64 { return c.calls }

// Requests are requests that the kernel carries out in order. Their failures are independent
// of each other. The zero value is empty.
type Requests struct {
	buf  []byte
	ends []int // of the requests
}

// Begin begins a request: its payload must be appended to the result, and the whole passed
// to End.
func (r *Requests) Begin(typ, flags uint16) []byte {
	b := binary.NativeEndian.AppendUint32(r.buf, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0)
}

// End ends a request.
func (r *Requests) End(b []byte) {
	start := len(r.buf)
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	r.buf = Pad(b)
	r.ends = append(r.ends, len(r.buf))
}

// Len returns the number of requests.
func (r *Requests) Len() int { return len(r.ends) }

// Reset removes all requests and keeps the memory.
func (r *Requests) Reset() { r.buf, r.ends = r.buf[:0], r.ends[:0] }

func (r *Requests) start(i int) int {
	if i == 0 {
		return 0
	}
	return r.ends[i-1]
}

// fit returns the end of the longest list of requests from first on that one system call may
// send.
func (r *Requests) fit(first int) int {
	last := first + 1
	for last < len(r.ends) && last-first < maxRequests && r.ends[last]-r.start(first) <= maxSend {
		last++
	}
	return last
}

// Failure is the failure of one request.
type Failure struct {
	// Index is the number of the request, from 0 on.
	Index  int
	Errno  unix.Errno
	Detail string // the kernel's own text, perhaps empty
}

// Error returns the error and the kernel's text.
func (f *Failure) Error() string {
	if f.Detail == "" {
		return f.Errno.Error()
	}
	return f.Errno.Error() + " (" + f.Detail + ")"
}

// Unwrap returns the errno, for errors.Is.
func (f *Failure) Unwrap() error { return f.Errno }

// Do sends requests, and returns those that failed, by rising index. An error means that
// some were not sent, or, if it wraps [ErrUnknownOutcome], that the outcome of some is
// unknown.
func (c *Conn) Do(ctx context.Context, r *Requests) (failed []Failure, err error) {
	for first := 0; first < r.Len(); {
		if err := ctx.Err(); err != nil {
			return failed, fmt.Errorf("netlink: %w", err)
		}
		last := r.fit(first)
		if failed, err = c.doSome(r, first, last, failed); err != nil {
			return failed, err
		}
		first = last
	}
	return failed, nil
}

// doSome sends requests with one system call. Only the last one requests an
// acknowledgement: the kernel has processed all when it is queued.
func (c *Conn) doSome(r *Requests, first, last int, failed []Failure) ([]Failure, error) {
	for i := first; i < last; i++ {
		at := r.buf[r.start(i):]
		flags := binary.NativeEndian.Uint16(at[6:]) &^ unix.NLM_F_ACK
		if i == last-1 {
			flags |= unix.NLM_F_ACK
		}
		binary.NativeEndian.PutUint16(at[6:], flags)
		binary.NativeEndian.PutUint32(at[8:], c.seq+1+uint32(i-first))
	}
	base := c.seq + 1
	c.seq += uint32(last - first)
	if err := c.begin(); err != nil {
		return failed, err
	}
	if err := c.socket.Send(r.buf[r.start(first):r.ends[last-1]]); err != nil {
		return failed, fmt.Errorf("netlink: %w", err)
	}
	err := c.answers(base, uint32(last-first), func(i uint32, o Outcome) {
		if o.Errno != 0 {
			failed = append(failed, Failure{Index: first + int(i), Errno: o.Errno, Detail: o.Detail})
		}
	})
	return failed, err
}

// begin reads what is left of the replies to earlier requests, without waiting: they could
// fill the receive buffer, so that later replies are lost.
func (c *Conn) begin() error {
	c.calls++
	for range maxStale {
		if !c.unread {
			break
		}
		switch _, err := c.socket.Receive(unix.MSG_DONTWAIT); {
		case errors.Is(err, unix.EAGAIN):
			c.unread = false
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return fmt.Errorf("netlink: %w", err)
		}
	}
	c.unread = true
	return nil
}

// answers reads the answers to n requests with sequence numbers from base on, up to that of
// the last one.
func (c *Conn) answers(base, n uint32, each func(i uint32, o Outcome)) error {
	for range maxStale {
		buf, err := c.socket.Receive(0)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
		for m, ok := buf.Next(); ok; m, ok = buf.Next() {
			i := m.Seq - base
			if i >= n || !m.IsLast() {
				continue
			}
			o, err := m.Outcome()
			if err != nil {
				return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
			}
			each(i, o)
			if i == n-1 {
				c.unread = false
				return nil
			}
		}
	}
	return fmt.Errorf("%w: too many messages", ErrUnknownOutcome)
}

// Ask sends a single request, with the flag NLM_F_DUMP or NLM_F_ACK, and passes the payload of each
// message of the answer to each, until that returns an error. The memory of the payload is
// reused. A refusal is a [*Failure]. The error wraps [ErrInterrupted] if objects changed
// during a dump.
func (c *Conn) Ask(ctx context.Context, r *Requests, each func(payload []byte) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	c.seq++
	if err := c.begin(); err != nil {
		return err
	}
	binary.NativeEndian.PutUint32(r.buf[8:], c.seq)
	if err := c.socket.Send(r.buf); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	var stopped error
	for range maxStale {
		buf, err := c.socket.Receive(0)
		if err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		ended, err := c.handOut(buf, each, &stopped)
		c.unread = !ended
		if err != nil || ended {
			return errors.Join(stopped, err)
		}
	}
	return errors.New("netlink: the answer does not end")
}

// handOut passes the messages of the latest request to each. After an error it only looks
// for the end: a second dump must not begin earlier.
func (c *Conn) handOut(buf Messages, each func([]byte) error, stopped *error) (ended bool, err error) {
	for m, ok := buf.Next(); ok; m, ok = buf.Next() {
		if m.Seq != c.seq {
			continue
		}
		if m.Flags&unix.NLM_F_DUMP_INTR != 0 && *stopped == nil {
			*stopped = ErrInterrupted
		}
		if m.IsLast() {
			o, err := m.Outcome()
			if err == nil && o.Errno != 0 {
				err = &Failure{Errno: o.Errno, Detail: o.Detail}
			}
			return true, err
		}
		if *stopped == nil {
			*stopped = each(m.Payload)
		}
	}
	return false, End(buf)
}
