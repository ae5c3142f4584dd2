package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// Flow is a connection or session of a client. It is a comparable value.
type Flow struct {
	// Protocol is TCP or UDP.
	Protocol v1.Protocol
	// Client is the address of the client, Frontend the one that it has sent to.
	Client, Frontend netip.AddrPort
	// Origin is where the flow starts.
	Origin Origin
}

// Origin says where a flow starts, in the sense of [proxy.TrafficRoute].
type Origin uint8

// The origins.
const (
	// ByAddress means that the engine derives the origin from the client's address.
	ByAddress Origin = iota
	// Pod is a pod of the cluster.
	Pod
	// Node is the node itself.
	Node
	// Outside is everywhere else.
	Outside
)

// Dial describes a connection to make to an endpoint.
type Dial struct {
	// Protocol is TCP or UDP.
	Protocol v1.Protocol
	// From is the address that the endpoint must see. It is not valid if any address
	// of the node is allowed.
	From netip.Addr
	// FromNode says that From, where valid, is an address of the node.
	FromNode bool
	// To is the endpoint.
	To netip.AddrPort
}

// Hooks replace parts of the engine. Each may be nil; all are called from several goroutines
// at once. The documentation of package userspace says what each must do.
type Hooks struct {
	// Dial makes connections to endpoints; nil stands for [DialBy]. The context of a TCP connection ends with
	// the timeout of the attempt. For a UDP socket there is nothing to wait for: a dialer that waits delays the
	// datagrams of all clients.
	Dial            func(context.Context, Dial) (net.Conn, error)
	Pick            func(Flow, []*endpoints.Endpoint) int
	FirstConnection func(Flow, proxy.ServicePortName)
	ProxyProtocol   func(proxy.ServicePortName) int
}

// Timeouts are the timeouts of package userspace, where they are documented.
type Timeouts struct {
	Dial                                            []time.Duration
	Suspect, Idle, HalfClosed, Drain, Session, Wake time.Duration
}

// Config configures an [Engine]. The zero value is usable.
type Config struct {
	Hooks    Hooks
	Timeouts Timeouts
	// Link returns the number of the link by which packets to an address leave, 0 if
	// that is not known; it must not wait. An endpoint on the client's own link is reached
	// from the node's address, since its answers to the client would bypass the node. Nil
	// means that client and endpoint are never on one link.
	Link func(netip.Addr) int
	// IsLocal reports whether an address is one of the node's, for [Engine.IsFrontend].
	IsLocal func(netip.Addr) bool
	// Captured says that connections of the engine may be captured, like any traffic of the node. Endpoints
	// that are frontends are then refused, since such a connection could loop until the node has no
	// resources left.
	Captured bool
	// Connections and Sessions are the limits of how many exist at a time; zero stands for
	// 65,536 each. At the limit, each listener accepts one more connection, which waits; a
	// new session ends the one that has been idle for longest. Once half of the limit is
	// in use, a client with an eighth of it gets no more; once three quarters are in use, a
	// service port with half of it gets no more: further connections are reset, and a
	// further session ends one of its own. A client is an address; an IPv6 address from
	// outside of the cluster stands for all of its /64.
	Connections, Sessions int
	// Descriptors is how many file descriptors the process may have open; zero
	// stands for any number. It lowers the limits: connections to 3/16 of it, with two
	// descriptors each, sessions to 2/9. Pipes for bulk data use at most an eighth. A quarter
	// is left to the rest of the process.
	Descriptors int
}

const (
	defaultLimit = 65_536
	// affinityLimit is how many clients with session affinity are remembered for all service ports. Beyond it,
	// clients of the service port that has most are forgotten. A table of package affinity has a limit, too.
	affinityLimit = 4 * defaultLimit
)

// validate returns an error that names all invalid fields.
func (c *Config) validate() error {
	t := &c.Timeouts
	var errs []error
	for name, n := range map[string]int{
		"Connections": c.Connections, "Sessions": c.Sessions, "Descriptors": c.Descriptors,
	} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("%s is %d, and must not be negative", name, n))
		}
	}
	for name, d := range map[string]time.Duration{
		"Timeouts.Suspect": t.Suspect, "Timeouts.Idle": t.Idle, "Timeouts.HalfClosed": t.HalfClosed, "Timeouts.Drain": t.Drain, "Timeouts.Session": t.Session, "Timeouts.Wake": t.Wake,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s is %v, and must not be negative", name, d))
		}
	}
	for i, d := range t.Dial {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("Timeouts.Dial[%d] is %v, and must be positive", i, d))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	t := &c.Timeouts
	if len(t.Dial) == 0 {
		t.Dial = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
	}
	t.Suspect = cmp.Or(t.Suspect, 5*time.Second)
	t.Idle = cmp.Or(t.Idle, 2*time.Hour)
	t.HalfClosed = cmp.Or(t.HalfClosed, 5*time.Minute)
	t.Drain = cmp.Or(t.Drain, 10*time.Minute)
	t.Session = cmp.Or(t.Session, time.Minute)
	t.Wake = cmp.Or(t.Wake, 30*time.Second)
	c.Connections = cmp.Or(c.Connections, defaultLimit)
	c.Sessions = min(cmp.Or(c.Sessions, defaultLimit), math.MaxInt/2) // and a share more
	if n := c.Descriptors; n > 0 {
		c.Connections, c.Sessions = min(c.Connections, max(1, n*3/16)), min(c.Sessions, max(1, n*2/9))
	}
	if c.Hooks.Dial == nil {
		c.Hooks.Dial = func(ctx context.Context, d Dial) (net.Conn, error) { return DialBy(ctx, &net.Dialer{}, d) }
	}
	return c
}

// pipes returns how many pipes may be open; each uses two descriptors. Other systems than Linux
// move no data between sockets.
func (c *Config) pipes() int {
	if runtime.GOOS != "linux" {
		return 0
	}
	if c.Descriptors == 0 {
		return defaultLimit
	}
	return c.Descriptors / 16
}

// DialBy makes a connection from any address of the node; it ignores From.
func DialBy(ctx context.Context, dialer *net.Dialer, d Dial) (net.Conn, error) {
	dialer.KeepAlive = -1 // not needed: the cluster removes dead endpoints
	return dialer.DialContext(ctx, strings.ToLower(string(d.Protocol)), d.To.String())
}
