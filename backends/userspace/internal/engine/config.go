package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
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
	// Client is who it comes from, Frontend the address that was asked.
	Client, Frontend netip.AddrPort
	// Origin is where it comes from.
	Origin Origin
}

// Origin says where a flow comes from, in the sense of [proxy.TrafficRoute].
type Origin uint8

// The origins.
const (
	// ByAddress leaves it to the client's address to tell.
	ByAddress Origin = iota
	// Pod is a pod of the cluster.
	Pod
	// Node is the node itself.
	Node
	// Outside is everywhere else.
	Outside
)

// Dial asks for a connection to an endpoint.
type Dial struct {
	Protocol v1.Protocol
	// From is the address that the endpoint must see; not valid where any of
	// the node's will do.
	From netip.Addr
	// FromNode says that From, where valid, is an address of the node.
	FromNode bool
	To       netip.AddrPort
}

// Hooks are where a user of the engine can put in something of their own. Each
// may be nil.
type Hooks struct {
	// Dial makes connections to endpoints. The default dials with package net
	// and cannot keep the client's address: it leaves From out of account. A
	// context ends with the patience for a connection of TCP. For sockets of UDP
	// it has no such end, and Dial must not wait: all other datagrams would.
	Dial func(context.Context, Dial) (net.Conn, error)
	// Begin begins a connection of TCP, in the place of Dial, and waits for
	// nothing. It gives the descriptor of a socket that does not block, which
	// becomes the engine's. It is for Linux; see Begin.
	Begin func(Dial) (fd int, err error)
	// Link gives a number to the link by which packets to an address leave, 0
	// where that is not known. An endpoint on the client's own link is reached from
	// the node's address, since its answers to the client would not come by here. It
	// waits for nothing. Nil says that no link has both.
	Link func(netip.Addr) int
	// Pick chooses one endpoint of several and gives its index. The default
	// chooses at random.
	Pick func(Flow, []*endpoints.Endpoint) int
	// FirstConnection is called when a connection comes to a service port
	// that has no endpoints anywhere. The connection then waits for
	// endpoints, up to Timeouts.Wake. It is called for every such
	// connection, and should return soon.
	FirstConnection func(Flow, proxy.ServicePortName)
	// ProxyProtocol says in which version of the PROXY protocol, 1 or 2, the
	// endpoints of a service port want to be told who the client is; 0 for
	// not at all. It is called for each TCP connection.
	ProxyProtocol func(proxy.ServicePortName) int
}

// Timeouts are the patience of the engine. Zero values stand for the defaults.
type Timeouts struct {
	// Dial is how long each try to reach an endpoint may take; their number is
	// the number of tries. The default is 250 ms, 500 ms, 1 s and 2 s.
	Dial []time.Duration
	// Suspect is how long an endpoint that could not be reached comes last;
	// 5 s by default.
	Suspect time.Duration
	// Idle closes a connection on which nothing was sent; 2 h by default.
	Idle time.Duration
	// HalfClosed does the same where one side has nothing more to say; 5 min
	// by default.
	HalfClosed time.Duration
	// Drain is how long connections live on whose endpoint has been removed;
	// 10 min by default.
	Drain time.Duration
	// Session ends a session on which nothing was sent; 1 min by default.
	Session time.Duration
	// Wake is how long a connection waits for the first endpoint; 30 s by
	// default.
	Wake time.Duration
}

// Config is what an [Engine] is made from. The zero value is usable.
type Config struct {
	Hooks    Hooks
	Timeouts Timeouts
	// Connections and Sessions are how many there may be at a time; zero
	// stands for 65,536 each. Of further connections each door accepts one,
	// which waits. A further session ends the one that has been idle for longest.
	// Once half of the number is reached, a client with an eighth of it gets
	// no more, and once three quarters are, a service port with half of it:
	// connections are reset, and of sessions their own gives way. A client is an
	// address; an IPv6 address from outside of the cluster stands for all of its
	// /64.
	Connections, Sessions int
	// Descriptors is how many file descriptors the process may have open; zero
	// stands for any number. Connections are then no more than 3 of 16 of it,
	// with two descriptors each, and sessions no more than 2 of 9. The pipes
	// of bulk data take an eighth of it at most. So a quarter is left to others.
	Descriptors int
	// AffinityClients is how many clients are remembered for a service port
	// and pool; zero stands for the default of package affinity.
	AffinityClients int
	// AffinityTotal is how many are remembered for all of them together; zero
	// stands for 262,144. Where that is not enough, those of the service port
	// that has most are forgotten.
	AffinityTotal int
}

const (
	defaultLimit         = 65_536
	defaultAffinityTotal = 4 * defaultLimit
)

// validate reports what no engine can be made from.
func (c *Config) validate() error {
	t := &c.Timeouts
	var errs []error
	for name, n := range map[string]int{
		"Connections": c.Connections, "Sessions": c.Sessions, "Descriptors": c.Descriptors,
		"AffinityClients": c.AffinityClients, "AffinityTotal": c.AffinityTotal,
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
			errs = append(errs, fmt.Errorf("%s[%d] is %v, and must be positive", "Timeouts.Dial", i, d))
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
	c.Sessions = cmp.Or(c.Sessions, defaultLimit)
	if n := c.Descriptors; n > 0 {
		c.Connections, c.Sessions = min(c.Connections, max(1, n*3/16)), min(c.Sessions, max(1, n*2/9))
	}
	c.AffinityTotal = cmp.Or(c.AffinityTotal, defaultAffinityTotal)
	if c.Hooks.Dial == nil {
		c.Hooks.Dial = dialAny
		if c.Hooks.Begin == nil {
			c.Hooks.Begin = defaultBegin()
		}
	}
	return c
}

// pipes is how many pipes there may be; each takes two descriptors.
func (c *Config) pipes() int {
	if c.Descriptors == 0 {
		return math.MaxInt
	}
	return c.Descriptors / 16
}

// dialAny is the default dialer.
func dialAny(ctx context.Context, d Dial) (net.Conn, error) {
	dialer := net.Dialer{KeepAlive: -1} // an endpoint that is gone is removed, by others
	network := "tcp"
	if d.Protocol == v1.ProtocolUDP {
		network = "udp"
	}
	return dialer.DialContext(ctx, network, d.To.String())
}

// pick chooses among endpoints, of which there is at least one.
func (e *Engine) pick(f Flow, among []*endpoints.Endpoint) int {
	if pick := e.config.Hooks.Pick; pick != nil {
		if i := pick(f, among); i >= 0 && i < len(among) {
			return i
		}
	}
	return rand.IntN(len(among))
}
