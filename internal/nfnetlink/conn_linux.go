package nfnetlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sendBuffer is asked for where the kernel lets us; nothing is reserved
	// by asking. It bounds a transaction: 10 million elements of 50 bytes.
	sendBuffer = 512 << 20
	// receiveBuffer holds the errors of a transaction: one for each message
	// that was refused.
	receiveBuffer = 4 << 20
	// bufferOverhead is what the kernel sets aside of a send buffer.
	bufferOverhead = 32
	// readSize is the size of one read. The kernel makes the messages of a
	// dump as large as the largest read it has seen, up to 32 KiB.
	readSize = 64 << 10
	// answerTimeout bounds the wait for an answer. The kernel has it ready
	// when the send returns, so that waiting at all means that it is lost.
	answerTimeout = 5 * time.Second
	// maxStale bounds how many answers to earlier requests are passed over.
	maxStale = 1 << 20
)

// Conn is a connection to nf_tables of one network namespace. It is meant to
// be kept: closing one waits for the kernel to release what was removed
// through it, some 16 ms. One that nobody refers to any more is closed in time.
//
// One call may be under way at a time; others return [ErrBusy].
type Conn struct {
	fd      int
	timeout time.Duration
	max     int
	seq     uint32 // the last one used
	dump    uint32 // number of a dump that was not read to its end; 0 is none
	buf     []byte // one read
	request []byte
	busy    atomic.Bool
	closed  bool
	lost    runtime.Cleanup
}

// Open connects to the network namespace of the calling thread; the connection
// stays with it. It needs CAP_NET_ADMIN in the user namespace that owns the
// network namespace, for every later call.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("nfnetlink: open: %w", os.NewSyscallError("socket", err))
	}
	c, err := newConn(fd, answerTimeout)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nfnetlink: open: %w", err), unix.Close(fd))
	}
	return c, nil
}

// newConn sets up a socket. Being connected to port 0 it takes messages from
// nobody but the kernel.
func newConn(fd int, timeout time.Duration) (*Conn, error) {
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	for _, opt := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, opt, 1); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	if err := growBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, sendBuffer); err != nil {
		return nil, err
	}
	if err := growBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer); err != nil {
		return nil, err
	}
	size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt", err)
	}
	return wrapConn(fd, size-bufferOverhead, timeout)
}

// wrapConn makes a connection of a socket that is ready for use.
func wrapConn(fd, maxBatch int, timeout time.Duration) (*Conn, error) {
	tv := unix.NsecToTimeval(timeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	c := &Conn{fd: fd, timeout: timeout, max: maxBatch, buf: make([]byte, readSize)}
	// A backend has no end of its own, so that nobody may ever call Close.
	c.lost = runtime.AddCleanup(c, func(fd int) { _ = unix.Close(fd) }, fd)
	return c, nil
}

// growBuffer asks for a buffer beyond the system's limit, which takes
// CAP_NET_ADMIN in the initial user namespace, and else for one up to it.
func growBuffer(fd, force, plain, size int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size)
	if errors.Is(err, unix.EPERM) {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
	return os.NewSyscallError("setsockopt", err)
}

// MaxBatch returns how many bytes a transaction may have (see [Batch.Len]). In
// the initial user namespace it is far more than any ruleset needs. Without
// privileges there it is about twice the sysctl net.core.wmem_max.
func (c *Conn) MaxBatch() int { return c.max }

// LimitBatch makes transactions of more bytes fail with a [*SizeError], as a send buffer
// of that size does; zero changes nothing.
func (c *Conn) LimitBatch(size int) {
	if size > 0 && size < c.max {
		c.max = size
	}
}

// Close closes the connection. Like every other call it returns ErrBusy when
// one is under way.
func (c *Conn) Close() error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	c.closed = true
	c.lost.Stop()
	if err := unix.Close(c.fd); err != nil {
		return fmt.Errorf("nfnetlink: %w", os.NewSyscallError("close", err))
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

// Commit applies a batch and returns when the kernel has done so, or has
// refused it with an [*Error]. An empty batch is no system call. The context
// is looked at before sending only: from then on the kernel decides, and the
// answer is there when it has. Commit does not change the batch, which may be
// committed again or extended.
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
	if n := b.Len(); n > c.max {
		return &SizeError{Size: n, Max: c.max}
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := c.settle(ctx); err != nil {
		return err
	}
	first := c.take(b.messages + 2)
	data := b.seal(first)
	err := c.send(data)
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

// acknowledge waits for the first answer to a message of the batch. The kernel
// answers when it has committed or aborted, errors before the acknowledgement,
// so that the first answer tells the outcome.
func (c *Conn) acknowledge(b *Batch, first uint32) error {
	flags := 0
	for range maxStale {
		buf, err := c.receive(flags)
		if errors.Is(err, unix.ENOBUFS) {
			// The queue overflowed. What came before is still in it, and
			// nothing more can come.
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
		if r.errno == 0 {
			return nil
		}
		c.drain()
		return b.describe(index, r)
	}
	return fmt.Errorf("%w: too many answers to earlier requests", ErrUnknownOutcome)
}

// findReply looks for an answer to one of the n messages numbered from first
// on and says to which. Other messages are left-overs of earlier requests.
func findReply(buf messages, first uint32, n int) (r reply, index uint32, ok bool) {
	for {
		m, more := buf.next()
		if !more {
			return reply{}, 0, false
		}
		index = m.seq - first
		if m.typ != unix.NLMSG_ERROR || index >= uint32(n) {
			continue
		}
		if r, err := parseReply(m); err == nil {
			return r, index, true
		}
	}
}

// drain empties the queue: a refused transaction is answered by an error for
// each message that was wrong, all of them there by now.
func (c *Conn) drain() {
	for range maxStale {
		if _, err := c.receive(unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
	}
}

// send is one system call.
func (c *Conn) send(data []byte) error {
	for {
		_, err := unix.Write(c.fd, data)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("write", err)
		}
	}
}

// receive returns what one read gave; the next one overwrites it. Signals
// interrupt reads of sockets with a timeout, so that EINTR means nothing.
func (c *Conn) receive(flags int) ([]byte, error) {
	for {
		var n int
		var err error
		if flags == 0 {
			n, err = unix.Read(c.fd, c.buf)
		} else {
			n, _, err = unix.Recvfrom(c.fd, c.buf, flags)
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return nil, fmt.Errorf("no answer within %v: %w", c.timeout, err)
		case err != nil:
			return nil, os.NewSyscallError("read", err)
		case n == 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return c.buf[:n], nil
		}
	}
}
