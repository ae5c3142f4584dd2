package ipvs

import (
	"errors"
	"fmt"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/proxy"
)

var (
	// ErrMissing reports that the kernel has no IPVS, and cannot load it.
	ErrMissing = errors.New("this kernel has no IPVS (module ip_vs)")
	// ErrReloaded reports that ip_vs was unloaded since the process first used it, and is loaded again: only
	// another process can use it.
	ErrReloaded = fmt.Errorf("%w: the module ip_vs was unloaded and loaded again: restart this process", proxy.ErrUnsupported)
)

// answerTimeout limits the wait for an answer, for which moby/ipvs waits for ever.
const answerTimeout = 10 * time.Second

// Conn is a connection to IPVS in a network namespace. Calls must not overlap.
type Conn struct {
	ns       *netns.NS
	handle   *ipvs.Handle // nil after a call without an answer
	patience time.Duration
}

// Open connects to IPVS in the network namespace of the calling thread. The connection stays
// in that namespace. The kernel loads the module ip_vs if it has it. The error wraps
// [ErrMissing] if it does not.
func Open() (*Conn, error) {
	ns, err := netns.Current(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("ipvs: %w", err)
	}
	c := &Conn{ns: ns, patience: answerTimeout}
	if err := c.call(c.find); err != nil {
		return nil, errors.Join(fmt.Errorf("ipvs: open: %w", err), c.Close())
	}
	return c, nil
}

// Close closes the connection. It must be called once at most.
func (c *Conn) Close() error {
	if c.handle != nil {
		c.handle.Close()
	}
	return c.ns.Close()
}

// call calls f, and ends it if the kernel does not answer.
func (c *Conn) call(f func(*ipvs.Handle) error) error {
	if c.handle == nil {
		if err := c.connect(); err != nil {
			return err
		}
	}
	end := time.AfterFunc(c.patience, c.handle.Close)
	err := f(c.handle)
	if !end.Stop() {
		c.handle = nil
		return fmt.Errorf("no answer of the kernel within %v", c.patience)
	}
	if errors.Is(err, unix.ENOENT) {
		// This is also what IPVS says if it does not have a scheduler or a destination.
		if gone := c.isGone(); gone != nil {
			return gone
		}
	}
	return err
}

// connect opens a handle. The first one of a process asks for the number of IPVS, so the module must be
// loaded before.
func (c *Conn) connect() error {
	if err := c.load(); err != nil {
		return err
	}
	return c.ns.Do(func() (err error) {
		c.handle, err = ipvs.New("")
		return err
	})
}

// load has the kernel load the module, unless it is loaded.
func (c *Conn) load() error {
	_, err := c.ns.Netlink().GenlFamilyGet("IPVS")
	if errors.Is(err, unix.ENOENT) {
		return ErrMissing
	}
	return err
}

// isGone returns an error if requests do not reach IPVS.
func (c *Conn) isGone() error {
	if err := c.load(); err != nil {
		return err
	}
	if err := c.find(c.handle); errors.Is(err, unix.ENOENT) {
		return ErrReloaded
	}
	return nil
}

// find looks for a virtual server that need not exist. It fails with ENOENT only if requests do not reach IPVS.
func (c *Conn) find(h *ipvs.Handle) error {
	_, err := h.GetService(service(ServiceKey{Mark: 1}, ServiceConfig{}))
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Op is a change of a virtual server or of one of its destinations. Adding what exists fails with EEXIST. Changing or
// removing fails with ESRCH if the virtual server does not exist, and with ENOENT if the destination does not.
type Op struct {
	Verb Verb
	Key  ServiceKey
	// Config is the whole configuration of a virtual server that is added or changed. The error is ENOENT if the kernel
	// does not have the scheduler.
	Config ServiceConfig
	// Destination is what is changed, if it has an address. Otherwise the virtual server is changed; its destinations
	// are removed with it.
	Destination Destination
}

// Verb is what is done to a virtual server or a destination.
type Verb string

// The verbs.
const (
	Add    Verb = "add"
	Change Verb = "change"
	Remove Verb = "remove"
)

func (o *Op) isServer() bool { return !o.Destination.Addr.IsValid() }

// do carries out the change.
func (o *Op) do(h *ipvs.Handle) error {
	s, d := service(o.Key, o.Config), o.Destination.destination()
	switch {
	case o.isServer() && o.Verb == Add:
		return h.NewService(s)
	case o.isServer() && o.Verb == Change:
		return h.UpdateService(s)
	case o.isServer():
		return h.DelService(s)
	case o.Verb == Add:
		return h.NewDestination(s, d)
	case o.Verb == Change:
		return h.UpdateDestination(s, d)
	}
	return h.DelDestination(s, d)
}

// explain says what an error of the kernel means: the text of ESRCH is "no such process".
func (o *Op) explain(err error) error {
	what, object := "the destination", fmt.Sprintf("destination %v of %v", o.Destination.Addr, o.Key)
	if o.isServer() {
		what, object = "the virtual server", fmt.Sprintf("virtual server %v", o.Key)
	}
	switch {
	case errors.Is(err, unix.ESRCH):
		err = fmt.Errorf("the virtual server does not exist (%w)", err)
	case errors.Is(err, unix.ENOENT) && o.isServer():
		err = fmt.Errorf("the kernel does not have the scheduler %q (%w)", o.Config.Scheduler, err)
	case errors.Is(err, unix.ENOENT):
		err = fmt.Errorf("%s does not exist (%w)", what, err)
	case errors.Is(err, unix.EEXIST):
		err = fmt.Errorf("%s exists already (%w)", what, err)
	}
	return fmt.Errorf("%s %s: %w", o.Verb, object, err)
}

// Do carries out a change. The kernel has refused the change if the error wraps an errno; otherwise the outcome is
// unknown.
func (c *Conn) Do(o Op) error {
	err := c.call(o.do)
	if _, isRefusal := errors.AsType[unix.Errno](err); isRefusal {
		return o.explain(err)
	}
	return err
}

// Services lists the virtual servers of the namespace. See the package about completeness.
func (c *Conn) Services() (all []Service, err error) {
	err = c.call(func(h *ipvs.Handle) error {
		list, err := h.GetServices()
		for _, s := range list {
			all = append(all, serviceOf(s))
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
func (c *Conn) Destinations(k ServiceKey) (all []Destination, err error) {
	err = c.call(func(h *ipvs.Handle) error {
		list, err := h.GetDestinations(service(k, ServiceConfig{}))
		for _, d := range list {
			all = append(all, destinationOf(d))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ipvs: list destinations of %v: %w", k, err)
	}
	return all, nil
}

// SetTimeouts changes the timeouts of the namespace, for connections that change their state
// from then on. 0 keeps a timeout.
func (c *Conn) SetTimeouts(t ipvs.Config) error {
	if err := c.call(func(h *ipvs.Handle) error { return h.SetConfig(&t) }); err != nil {
		return fmt.Errorf("ipvs: set timeouts %+v: %w", t, err)
	}
	return nil
}
