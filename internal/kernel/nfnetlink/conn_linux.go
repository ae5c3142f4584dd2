package nfnetlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

const (
	// sendBuffer is the requested size in bytes of the send buffer; the kernel reserves no
	// memory for it. It limits the size of a transaction: to 10 million elements of 50 bytes.
	// Without privileges the size is about twice the sysctl net.core.wmem_max.
	sendBuffer = 512 << 20
	// receiveBuffer is the requested size in bytes of the receive buffer. It holds the
	// errors of a transaction: one for each message that was refused.
	receiveBuffer = 4 << 20
	// bufferOverhead is the part of a send buffer that the kernel needs itself.
	bufferOverhead = 32
	// answerTimeout limits the wait for a reply. The kernel has queued the reply when the
	// send returns, so a reply that is not in the queue then is lost.
	answerTimeout = 5 * time.Second
	// maxStale limits how many replies to earlier requests are skipped.
	maxStale = 1 << 20
)

// Conn is a connection to nf_tables of one network namespace. Keep it open: Close waits,
// for about 16 ms, until the kernel has released the objects that were removed through
// it. The garbage collector closes a connection that is no longer reachable.
//
// Only one call may run at a time; a concurrent one returns [ErrBusy].
type Conn struct {
	socket  *rawnetlink.Socket
	max     int    // bytes of a transaction
	seq     uint32 // last used sequence number
	unread  uint32 // last sequence number of a request whose replies were not all read; 0 is none
	request []byte
	// monitor is nil if nobody asks about commits of other programs.
	monitor *Monitor
	busy    atomic.Bool
	closed  bool
}

// Open connects to the network namespace of the calling thread. The connection stays in
// that namespace. All calls need CAP_NET_ADMIN in the user namespace that owns the
// network namespace.
func Open() (*Conn, error) {
	s, err := rawnetlink.OpenSocket(unix.NETLINK_NETFILTER, rawnetlink.Buffers{Send: sendBuffer, Receive: receiveBuffer}, answerTimeout)
	if err != nil {
		return nil, fmt.Errorf("nfnetlink: open: %w", err)
	}
	actual, err := unix.GetsockoptInt(s.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nfnetlink: open: %w", os.NewSyscallError("getsockopt", err)), s.Close())
	}
	return &Conn{socket: s, max: actual - bufferOverhead}, nil
}

// LimitBatch makes transactions of more than size bytes fail with a [*SizeError], as a
// send buffer of that size does; zero changes nothing.
func (c *Conn) LimitBatch(size int) {
	if size > 0 && size < c.max {
		c.max = size
	}
}

// Close closes the connection. Like every other method it returns ErrBusy while another
// call runs.
func (c *Conn) Close() error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	c.closed = true
	if err := c.socket.Close(); err != nil {
		return fmt.Errorf("nfnetlink: %w", err)
	}
	return nil
}

func (c *Conn) enter() error {
	if !c.busy.CompareAndSwap(false, true) {
		return ErrBusy
	}
	if c.closed {
		c.leave()
		return ErrClosed
	}
	return nil
}

func (c *Conn) leave() { c.busy.Store(false) }

// Commit applies a batch and returns when the kernel has applied it, or has refused it
// with an [*Error]. An empty batch needs no system call. Commit checks the context only
// before sending: the send returns when the kernel has decided, and the reply is then
// queued. Commit does not change the batch, which may be committed again or extended.
func (c *Conn) Commit(ctx context.Context, b *Batch) error {
	if err := b.Err(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("nfnetlink: commit: %w", err)
	}
	if b.Empty() {
		return nil
	}
	n := b.Len()
	if n > c.max {
		return &SizeError{Size: n, Max: c.max}
	}
	if m := c.monitor; m != nil && n >= bulk && m.listening {
		return m.Pause(ctx, func() (int, error) { return 1, c.Commit(ctx, b) })
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := c.skipUnread(ctx); err != nil {
		return err
	}
	first := c.take(b.messages + 2)
	c.unread = c.seq
	data := b.seal(first)
	err := c.socket.Send(data)
	b.unseal()
	if err != nil {
		return fmt.Errorf("nfnetlink: send transaction: %w", err)
	}
	return c.acknowledge(b, first)
}

// take reserves n sequence numbers and returns the first.
func (c *Conn) take(n int) uint32 {
	first := c.seq + 1
	c.seq += uint32(n)
	return first
}

// acknowledge waits for the first reply to a message of the batch. The kernel replies
// after it has committed or aborted, with errors before the acknowledgement, so the
// first reply decides the outcome.
func (c *Conn) acknowledge(b *Batch, first uint32) error {
	flags := 0
	for range maxStale {
		buf, err := c.socket.Receive(flags)
		if errors.Is(err, unix.ENOBUFS) {
			// The queue overflowed. It still has the earlier replies, and
			// there will be no later ones.
			flags = unix.MSG_DONTWAIT
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
		r, index, ok := findReply(buf, first, b.messages+2)
		if !ok {
			continue
		}
		if r.Errno == 0 {
			c.unread = 0
			return nil
		}
		return b.describe(index, r) // the next call reads the errors of further messages
	}
	return fmt.Errorf("%w: too many replies to earlier requests", ErrUnknownOutcome)
}

// findReply finds a reply to one of the n messages numbered from first on, and returns
// the index of that message. Other replies are left over from earlier requests.
func findReply(buf messages, first uint32, n int) (r outcome, index uint32, ok bool) {
	for {
		m, more := buf.Next()
		if !more {
			return outcome{}, 0, false
		}
		index = m.Seq - first
		if m.Type != unix.NLMSG_ERROR || index >= uint32(n) {
			continue
		}
		if r, err := m.Outcome(); err == nil {
			return r, index, true
		}
	}
}
