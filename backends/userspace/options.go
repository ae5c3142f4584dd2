package userspace

import (
	"context"
	"net"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
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
	// Picker chooses one endpoint of several, unless Hooks.Pick is set; the zero value is
	// [RoundRobin].
	Picker Picker
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
	// AffinityClients is the limit of remembered clients of a service port with session
	// affinity, for each pool. A full table forgets the client that has been silent for
	// longest. Zero means 65,536.
	AffinityClients int
	// AffinityTotal is the limit of remembered clients of all service ports together.
	// Beyond it, clients of the service port that has most are forgotten. Zero means
	// 262,144.
	AffinityTotal int
}

// DefaultPort is the default of [Options].Port.
const DefaultPort = 16421

// The pickers.
const (
	// RoundRobin chooses the endpoints of a service port in turn. A change of the endpoints
	// does not restart the round.
	RoundRobin = engine.RoundRobin
	// Random chooses any endpoint.
	Random = engine.Random
	// LeastConnections chooses an endpoint with the fewest connections and sessions through
	// this backend.
	LeastConnections = engine.LeastConnections
)

// Types of the engine that options and hooks consist of. Zero values of [Timeouts] stand
// for the defaults: Dial 250 ms, 500 ms, 1 s and 2 s, Suspect 5 s, Idle 2 h,
// HalfClosed 5 min, Drain 10 min, Session 1 min, Wake 30 s.
type (
	// Timeouts say how long a backend waits.
	Timeouts = engine.Timeouts
	// Hooks replace parts of a backend. Each may be nil; all are called from several
	// goroutines at once.
	Hooks = engine.Hooks
	// Picker says how one endpoint of several is chosen.
	Picker = engine.Picker
	// Flow is a connection, or a session of datagrams, of one client.
	Flow = engine.Flow
	// Dial describes a connection to make to an endpoint. From is valid only with
	// [TPROXY].
	Dial = engine.Dial
	// Stats are the counters of a backend.
	Stats = engine.Stats
)

// dialer reaches endpoints if Hooks.Dial is nil.
type dialer interface {
	Dial(context.Context, engine.Dial) (net.Conn, error)
}

// engineConfig returns the config of the engine.
func (o *Options) engineConfig(d dialer) engine.Config {
	c := engine.Config{
		Timeouts: o.Timeouts, Hooks: o.Hooks, Picker: o.Picker, Connections: o.Connections, Sessions: o.Sessions,
		AffinityClients: o.AffinityClients, AffinityTotal: o.AffinityTotal,
		AsNode: o.Capture != TPROXY,
	}
	if c.Hooks.Dial == nil {
		c.Hooks.Dial = d.Dial
	}
	return c
}
