package userspace

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// Options are the identity, the timeouts and the limits of a backend. The zero value is usable.
type Options struct {
	// Identity's name is that of the tables, and determines the addresses that the
	// backend listens at. Its mark is the bit of the packet mark by which packets are routed
	// to the backend's sockets. Connections to host-network endpoints, and flows that
	// connection tracking has forgotten, have the same bit in their connection mark. It also
	// determines the number of the routing table. Instances in one network namespace must
	// differ in name and mark.
	Identity backends.Identity
	// Capture is how packets get to the sockets.
	Capture Capture
	// Addresses are the options of the capture [Addresses].
	Addresses AddressOptions
	// Families are the IP families to serve; empty means both. On Linux, a family that the
	// node cannot use is left out until it can.
	Families []v1.IPFamily
	// Port is the port that the backend listens at, at addresses of its own, which other
	// machines cannot reach. Zero means [DefaultPort].
	Port uint16
	// Timeouts bound all waiting; the zero value is useful.
	Timeouts Timeouts
	// Hooks are functions that the backend calls; the zero value is useful.
	Hooks Hooks
	// Connections and Sessions are the limits of TCP connections and UDP sessions at a
	// time. Zero means 65,536 each. The process's limit of file descriptors (RLIMIT_NOFILE
	// at the time of New) lowers both: connections to 3/16 of it, and sessions to 2/9, so
	// that a quarter of all descriptors is left to the rest of the process. With 1,024
	// descriptors, the limits are 192 connections and 227 sessions; the full limits need
	// 349,526 descriptors. Each backend assumes that it is the only one of the process.
	//
	// At the limit, further connections wait, and a further session ends the one that has
	// been idle for longest. Once half of the limit is in use, a client with an eighth of
	// it gets no more, and once three quarters are in use, a service port with half of it:
	// their further connections are reset, and a further session ends the one of theirs
	// that has been idle for longest. A client is an address; an IPv6 address that is not a
	// pod's stands for all of its /64. Loopback addresses are no clients, since all processes of the
	// node share them: they are kept to the shares of service ports.
	Connections, Sessions int
}

// DefaultPort is the default of [Options].Port.
const DefaultPort = 16421

// Timeouts say how long a backend waits. A zero value stands for the default; no value may be
// negative.
type Timeouts struct {
	// Dial is how long each attempt to reach an endpoint may take; there are as many
	// attempts as values, and each value is positive. The default is 250 ms, 500 ms, 1 s
	// and 2 s.
	Dial []time.Duration
	// Suspect is how long an endpoint that could not be reached is tried only after all
	// others; 5 s by default.
	Suspect time.Duration
	// Idle is how long a connection on which nothing is sent stays open; 2 h by default.
	Idle time.Duration
	// HalfClosed is the same for a connection of which one side has sent everything;
	// 5 min by default.
	HalfClosed time.Duration
	// Drain is how long connections of a removed endpoint are kept; 10 min by default. The period begins and ends up
	// to 10 s late.
	Drain time.Duration
	// Session is how long a session on which nothing is sent lasts; 1 min by default.
	Session time.Duration
	// Wake is how long a connection waits for the first endpoint; 30 s by default. Nothing waits
	// without Hooks.FirstConnection: New then refuses a value.
	Wake time.Duration
}

// Flow is a connection, or a session of datagrams, of one client. It is a comparable value.
type Flow struct {
	// Protocol is TCP or UDP.
	Protocol v1.Protocol
	// Client is the address of the client, Frontend the one that it has sent to.
	Client, Frontend netip.AddrPort
}

// Hooks replace parts of a backend. Each may be nil; all are called from several
// goroutines at once.
type Hooks struct {
	// Pick chooses one endpoint of several, and returns its index in the list, which it
	// must not change. If it returns another number, the choice is random. Without Pick, the
	// endpoints of a service port have their turns; a change of them does not restart the round.
	Pick func(Flow, []*endpoints.Endpoint) int
	// FirstConnection is called for each connection and datagram to a service port
	// that has no endpoints anywhere. A connection then waits for an endpoint, up to
	// Timeouts.Wake, and datagrams are lost; without the hook, both are rejected. It should
	// return soon.
	FirstConnection func(Flow, proxy.ServicePortName)
	// ProxyProtocol returns the version of the PROXY protocol, 1 or 2, whose header each TCP
	// connection to an endpoint of a service port starts with, to name the client; 0 turns
	// it off.
	ProxyProtocol func(proxy.ServicePortName) int
}

// configure adds the options to the config of the engine.
func (o *Options) configure(c *engine.Config) {
	c.Timeouts, c.Connections, c.Sessions = engine.Timeouts(o.Timeouts), o.Connections, o.Sessions
	c.Hooks.ProxyProtocol = o.Hooks.ProxyProtocol
	if pick := o.Hooks.Pick; pick != nil {
		c.Hooks.Pick = func(f engine.Flow, among []*endpoints.Endpoint) int { return pick(flowOf(f), among) }
	}
	if first := o.Hooks.FirstConnection; first != nil {
		c.Hooks.FirstConnection = func(f engine.Flow, name proxy.ServicePortName) { first(flowOf(f), name) }
	}
}

func flowOf(f engine.Flow) Flow { return Flow{f.Protocol, f.Client, f.Frontend} }
