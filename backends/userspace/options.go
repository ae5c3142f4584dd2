package userspace

import (
	"context"
	"net"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// Options say what a backend may call its own, how patient it is, and how much
// it carries at a time. The zero value is usable.
type Options struct {
	// Identity names the tables, and by its name, the addresses that the
	// backend listens at. Its mark is the bit of the packet mark, and of the
	// connection mark of connections to endpoints in the node's own network
	// and of flows that begin with an answer, by which packets are led to the
	// backend's sockets; it also numbers the routing table. Instances in one
	// network namespace differ in both.
	Identity backends.Identity
	// Capture is how packets get here; the zero value is [TPROXY].
	Capture Capture
	// Families are the IP families to serve; empty means both.
	Families []v1.IPFamily
	// Port is where the backend listens, at addresses that nobody else has;
	// it cannot be reached from other machines. Zero means [DefaultPort].
	Port uint16
	// Timeouts and Hooks have useful zero values.
	Timeouts Timeouts
	Hooks    Hooks
	// Connections and Sessions bound how many connections of TCP and how many
	// sessions of UDP are carried at a time. Zero means 65,536 each. Whatever is
	// said here, the process's limit of file descriptors (RLIMIT_NOFILE at the
	// time of New) bounds both: connections to 3/16 of it, and sessions to 2/9,
	// so that a quarter of all descriptors is left to the rest of the process. Of
	// 1,024 descriptors those are 192 connections and 227 sessions; for the
	// full number it takes 349,526. Only one backend of a process can count on that.
	//
	// Further connections wait. A further session ends the one that has been
	// idle for longest. Once half of the number is reached, a client with an
	// eighth of it gets no more, and once three quarters are reached, a service
	// port with half of it: their connections are reset, and of their sessions
	// the one that has been idle for longest gives way. A client is an address;
	// one of IPv6 that is not a pod's stands for all of its /64.
	Connections, Sessions int
	// AffinityClients is how many clients of a service port with session
	// affinity are remembered, for each pool. A full table forgets who has
	// been silent for longest. Zero means 65,536.
	AffinityClients int
	// AffinityTotal is how many are remembered for all service ports together.
	// Where that is not enough, those of the port that has most are forgotten.
	// Zero means 262,144.
	AffinityTotal int
}

// DefaultPort is where a backend listens unless [Options] say otherwise.
const DefaultPort = 16421

// Timeouts say how patient a backend is. Zero values stand for the defaults.
type Timeouts struct {
	// Dial is how long each try to reach an endpoint may take; there are as
	// many tries. The default is 250 ms, 500 ms, 1 s and 2 s.
	Dial []time.Duration
	// Suspect is how long an endpoint that could not be reached comes last.
	// The default is 5 s.
	Suspect time.Duration
	// Idle and HalfClosed end connections on which nothing was sent, the
	// latter where one side has said all it had to say. The defaults are 2 h
	// and 5 min.
	Idle, HalfClosed time.Duration
	// Drain is how long a connection outlives its endpoint's removal. The
	// default is 10 min.
	Drain time.Duration
	// Session ends the session of a client of UDP. The default is 1 min.
	Session time.Duration
	// Wake is how long a connection waits after Hooks.FirstConnection. The
	// default is 30 s.
	Wake time.Duration
}

// Flow is a connection, or a session of datagrams, of one client.
type Flow struct {
	Protocol v1.Protocol
	// Client is where it comes from, Frontend the address it asked for.
	Client, Frontend netip.AddrPort
}

// Hooks put something of the user's own into a backend. Each may be nil; all are
// called from several goroutines at once.
type Hooks struct {
	// Dial makes connections to endpoints. From is the address that the
	// endpoint must see, not valid where any of the node's will do, as always
	// where the capture is not [TPROXY]. A dialer
	// that cannot keep it should say so by an error. What the default dialer
	// does, nothing else captures; what this one does may be captured again. The
	// context of a connection of TCP ends in time; for sockets of UDP there is
	// nothing to wait for, and who waits holds up the datagrams of all.
	Dial func(ctx context.Context, protocol v1.Protocol, from netip.Addr, to netip.AddrPort) (net.Conn, error)
	// Pick chooses one endpoint of several, by its index. The default chooses
	// at random.
	Pick func(Flow, []*endpoints.Endpoint) int
	// FirstConnection is called for connections and datagrams to service
	// ports that have no endpoints anywhere, which are rejected otherwise. A
	// connection then waits for an endpoint; datagrams are lost. It should
	// return soon.
	FirstConnection func(Flow, proxy.ServicePortName)
	// ProxyProtocol gives the version of the PROXY protocol, 1 or 2, in which
	// the endpoints of a port are told who the client is, at the beginning of
	// each TCP connection; 0 for not at all.
	ProxyProtocol func(proxy.ServicePortName) int
}

// Stats are the numbers of a backend.
type Stats struct {
	// Connections and Sessions are how many there are now.
	Connections, Sessions int
	// Accepted is how many connections there have been.
	Accepted uint64
	// Failed counts connections and sessions for which no endpoint could be
	// reached, Denied those that no route forwards.
	Failed, Denied uint64
	// Crowded counts connections and datagrams that were too many: of one
	// client, of one service port, of all, or for the ports and descriptors that
	// there are. It also counts sessions that gave way to newer ones.
	Crowded uint64
	// Faults counts errors of the sockets where clients come in, and Fault is
	// the last of them.
	Faults uint64
	Fault  error
}

// flowOf gives a flow as hooks see it.
func flowOf(f engine.Flow) Flow {
	return Flow{Protocol: f.Protocol, Client: f.Client, Frontend: f.Frontend}
}

// dialer reaches endpoints where the user has no way of their own.
type dialer interface {
	dial(ctx context.Context, d engine.Dial) (net.Conn, error)
	// begin does so for connections, without waiting.
	begin(d engine.Dial) (fd int, err error)
}

// engineConfig translates options.
func (o *Options) engineConfig(d dialer) engine.Config {
	c := engine.Config{
		Timeouts: engine.Timeouts(o.Timeouts), Connections: o.Connections, Sessions: o.Sessions,
		AffinityClients: o.AffinityClients, AffinityTotal: o.AffinityTotal,
		Hooks: engine.Hooks{Dial: d.dial, Begin: d.begin, ProxyProtocol: o.Hooks.ProxyProtocol},
	}
	if h := o.Hooks.Dial; h != nil {
		c.Hooks.Begin = nil
		c.Hooks.Dial = func(ctx context.Context, d engine.Dial) (net.Conn, error) {
			return h(ctx, d.Protocol, d.From, d.To)
		}
	}
	if h := o.Hooks.Pick; h != nil {
		c.Hooks.Pick = func(f engine.Flow, among []*endpoints.Endpoint) int { return h(flowOf(f), among) }
	}
	if h := o.Hooks.FirstConnection; h != nil {
		c.Hooks.FirstConnection = func(f engine.Flow, name proxy.ServicePortName) { h(flowOf(f), name) }
	}
	if dial, begin := c.Hooks.Dial, c.Hooks.Begin; o.Capture != TPROXY {
		// What is sent to the client does not come by here.
		c.Hooks.Dial = func(ctx context.Context, d engine.Dial) (net.Conn, error) {
			d.From = netip.Addr{}
			return dial(ctx, d)
		}
		if begin != nil {
			c.Hooks.Begin = func(d engine.Dial) (int, error) {
				d.From = netip.Addr{}
				return begin(d)
			}
		}
	}
	return c
}
