package ipvs

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/rawnetlink"
)

// maxOps limits how many operations are encoded at once, and so the memory that a Conn keeps.
const maxOps = 1024

// Names and numbers of the controller of generic netlink.
const (
	familyName     = "IPVS"
	getFamily      = 3 // CTRL_CMD_GETFAMILY
	familyIDAttr   = 1 // CTRL_ATTR_FAMILY_ID
	familyNameAttr = 2 // CTRL_ATTR_FAMILY_NAME
	controlVersion = 1
)

var (
	// ErrMissing reports that the kernel has no IPVS, and cannot load it.
	ErrMissing = errors.New("this kernel has no IPVS (module ip_vs)")
	// ErrReloaded reports that ip_vs was unloaded since the previous call, and is loaded
	// again: it has no servers, and default timeouts. The next call works.
	ErrReloaded = errors.New("the module ip_vs was unloaded and loaded again")
)

// Conn is a connection to IPVS in a network namespace. Calls must not overlap.
type Conn struct {
	conn     *rawnetlink.Conn
	family   uint16
	requests rawnetlink.Requests
}

// Open connects to IPVS in the network namespace of the calling thread. The connection stays
// in that namespace. The kernel loads the module ip_vs if it has it. The error wraps
// [ErrMissing] if it does not.
func Open() (*Conn, error) {
	conn, err := rawnetlink.Open(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("ipvs: %w", err)
	}
	c := &Conn{conn: conn}
	if c.family, err = c.resolve(context.Background()); err != nil {
		return nil, errors.Join(fmt.Errorf("ipvs: open: %w", err), conn.Close())
	}
	return c, nil
}

// Close closes the connection. It must be called once at most.
func (c *Conn) Close() error { return c.conn.Close() }

// Calls returns how many system calls have sent requests so far.
func (c *Conn) Calls() uint64 { return c.conn.Calls() }

// resolve asks for the number of the family, which is another one each time that the module
// is loaded. The kernel loads the module for it.
func (c *Conn) resolve(ctx context.Context) (uint16, error) {
	c.requests.Reset()
	b := c.requests.Begin(unix.GENL_ID_CTRL, unix.NLM_F_ACK)
	b = append(b, getFamily, controlVersion, 0, 0)
	c.requests.End(rawnetlink.AppendString(b, familyNameAttr, familyName))
	var id uint16
	err := c.conn.Ask(ctx, &c.requests, func(payload []byte) error {
		a, err := attributes(payload)
		id = uint16(number(a.Find(familyIDAttr)))
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, ErrMissing
	case err == nil && id == 0:
		return 0, rawnetlink.ErrMalformed
	}
	return id, err
}

// checkFamily returns an error if the number of the family has changed. Requests fail with
// ENOENT then, which is also what IPVS says if it does not have a scheduler or a destination.
func (c *Conn) checkFamily(ctx context.Context) error {
	id, err := c.resolve(ctx)
	if err != nil || id == c.family {
		return err
	}
	c.family = id
	return ErrReloaded
}

// Failure is the failure of one operation.
type Failure struct {
	// Index is that of the operation in the list.
	Index int
	Op    Op
	Errno unix.Errno
}

// Error says which operation failed and why.
func (f *Failure) Error() string { return f.Op.String() + ": " + f.reason() }

// reason says what the kernel means: the text of ESRCH is "no such process".
func (f *Failure) reason() string {
	isDestination := f.Op.command >= newDestination
	switch {
	case f.Errno == unix.ESRCH:
		return "the virtual server does not exist"
	case f.Errno == unix.ENOENT && f.Op.hasScheduler():
		return fmt.Sprintf("the kernel does not have the scheduler %q", f.Op.config.Scheduler)
	case f.Errno == unix.ENOENT && isDestination:
		return "the destination does not exist"
	case f.Errno == unix.EEXIST && isDestination:
		return "the destination exists already"
	case f.Errno == unix.EEXIST:
		return "the virtual server exists already"
	default:
		return f.Errno.Error()
	}
}

// Unwrap returns the errno, for errors.Is.
func (f *Failure) Unwrap() error { return f.Errno }

// Do carries out operations in order, and returns those that failed, by rising index. The
// others succeeded. An error means that it is unknown which ones succeeded beyond those that
// failed, or that none did: list what the kernel has.
func (c *Conn) Do(ctx context.Context, ops []Op) (failed []Failure, err error) {
	for first := 0; first < len(ops); first += maxOps {
		before := len(failed)
		if failed, err = c.doSome(ctx, ops, first, failed); err != nil {
			return failed, fmt.Errorf("ipvs: %w", err)
		}
		for _, f := range failed[before:] {
			if f.Errno != unix.ENOENT {
				continue
			}
			if err := c.checkFamily(ctx); err != nil {
				return failed, fmt.Errorf("ipvs: %w", err)
			}
			break
		}
	}
	return failed, nil
}

// doSome carries out the operations from first on that are encoded at once.
func (c *Conn) doSome(ctx context.Context, ops []Op, first int, failed []Failure) ([]Failure, error) {
	c.requests.Reset()
	for _, o := range ops[first:min(first+maxOps, len(ops))] {
		c.requests.End(o.appendTo(c.requests.Begin(c.family, 0)))
	}
	failures, err := c.conn.Do(ctx, &c.requests)
	for _, f := range failures {
		i := first + f.Index
		failed = append(failed, Failure{Index: i, Op: ops[i], Errno: f.Errno})
	}
	return failed, err
}

// ask sends a request and passes each message of the answer to each.
func (c *Conn) ask(ctx context.Context, b []byte, each func(payload []byte) error) error {
	c.requests.End(b)
	err := c.conn.Ask(ctx, &c.requests, each)
	if errors.Is(err, unix.ENOENT) {
		if gone := c.checkFamily(ctx); gone != nil {
			err = gone
		}
	}
	return err
}

// begin begins the only request of a call.
func (c *Conn) begin(cmd command, flags uint16) []byte {
	c.requests.Reset()
	return append(c.requests.Begin(c.family, flags), byte(cmd), version, 0, 0)
}

// Services lists the virtual servers of the namespace. See the package about completeness.
func (c *Conn) Services(ctx context.Context) ([]Service, error) {
	var all []Service
	err := c.ask(ctx, c.begin(getService, unix.NLM_F_DUMP), func(payload []byte) error {
		s, err := parseService(payload)
		if err == nil {
			all = append(all, s)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ipvs: list virtual servers: %w", err)
	}
	return all, nil
}

// Destinations lists the destinations of a virtual server: none if the server does not exist.
// See the package about completeness.
func (c *Conn) Destinations(ctx context.Context, k ServiceKey) ([]DestinationState, error) {
	b := c.begin(getDestination, unix.NLM_F_DUMP)
	b, at := rawnetlink.Nest(b, attrService)
	b = appendKey(b, k)
	rawnetlink.Close(b, at)
	var all []DestinationState
	err := c.ask(ctx, b, func(payload []byte) error {
		d, err := parseDestination(payload, k.isIPv6())
		if err == nil {
			all = append(all, d)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ipvs: list destinations of %v: %w", k, err)
	}
	return all, nil
}

// Timeouts returns the timeouts of the namespace.
func (c *Conn) Timeouts(ctx context.Context) (t Timeouts, err error) {
	err = c.ask(ctx, c.begin(getConfig, unix.NLM_F_ACK), func(payload []byte) error {
		a, err := attributes(payload)
		t = Timeouts{TCP: number32(a, attrTimeoutTCP), TCPFin: number32(a, attrTimeoutTCPFin), UDP: number32(a, attrTimeoutUDP)}
		return err
	})
	if err != nil {
		return Timeouts{}, fmt.Errorf("ipvs: read timeouts: %w", err)
	}
	return t, nil
}

// SetTimeouts changes the timeouts of the namespace, for connections that change their state
// from then on. 0 keeps a timeout.
func (c *Conn) SetTimeouts(ctx context.Context, t Timeouts) error {
	b := c.begin(setConfig, unix.NLM_F_ACK)
	b = append32(b, attrTimeoutTCP, t.TCP)
	b = append32(b, attrTimeoutTCPFin, t.TCPFin)
	b = append32(b, attrTimeoutUDP, t.UDP)
	if err := c.ask(ctx, b, func([]byte) error { return nil }); err != nil {
		return fmt.Errorf("ipvs: set timeouts %+v: %w", t, err)
	}
	return nil
}
