package ipset

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/rawnetlink"
)

// Conn is a connection to the kernel's ipset. Calls must not overlap.
type Conn struct {
	netlink *rawnetlink.Conn
	// window is kept for its memory.
	window window
}

// Open connects to the ipset of the network namespace of the calling thread. The connection stays
// in that namespace. The error wraps [ErrUnsupported] if the kernel lacks ipset, and EPERM
// without CAP_NET_ADMIN.
func Open() (*Conn, error) {
	n, err := rawnetlink.Open(unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, fmt.Errorf("ipset: %w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ipset: %w", err)
	}
	c := &Conn{netlink: n}
	if err := c.probe(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return c, nil
}

// Close closes the connection. It must be called once at most.
func (c *Conn) Close() error { return c.netlink.Close() }

// Calls returns how many system calls have sent requests so far.
func (c *Conn) Calls() uint64 { return c.netlink.Calls() }

// probe checks that the kernel speaks our version of the protocol. The read that it makes has a
// second effect: the kernel makes the messages of a listing as long as the longest read so far,
// and on a new socket so short that a bucket with another program's long comments does not fit.
func (c *Conn) probe() error {
	lowest, highest := uint8(0), uint8(0)
	err := c.ask(context.Background(), request{command: cmdProtocol, flags: unix.NLM_F_ACK}, func(a rawnetlink.Attrs) error {
		highest = uint8Of(a.Find(attrProtocol))
		if lowest = uint8Of(a.Find(attrRevisionMin)); lowest == 0 {
			lowest = highest // before Linux 4.20
		}
		return nil
	})
	switch {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("ipset: %w: %w", ErrUnsupported, err)
	case err != nil:
		return fmt.Errorf("ipset: %w", err)
	case lowest > protocolVersion || highest < protocolVersion:
		return fmt.Errorf("ipset: %w: it speaks versions %d to %d of the protocol, want %d", ErrUnsupported, lowest, highest, protocolVersion)
	}
	return nil
}

// request is a request with an answer.
type request struct {
	command, flags uint16
	set            string // "" is all, or none
	attributes     []byte
}

// ask passes the attributes of each message of the answer to each.
func (c *Conn) ask(ctx context.Context, q request, each func(rawnetlink.Attrs) error) error {
	var r rawnetlink.Requests
	r.End(append(begin(&r, q.command, q.flags, q.set), q.attributes...))
	return c.netlink.Ask(ctx, &r, func(payload []byte) error {
		a, err := attributes(payload)
		if err != nil {
			return err
		}
		return each(a)
	})
}
