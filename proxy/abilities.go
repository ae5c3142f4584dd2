package proxy

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// Abilities are what a [Backend] can do beside Apply and Cleanup. A function is nil if the Backend
// lacks the ability. A wrapper of a Backend returns the Abilities of the Backend that it wraps, with its own
// functions in the place of some.
//
// Operations, CheckNode, CountTraffic, CountRules and CountConnections may be called from any goroutine at
// any time before Close, and WaitDrift beside all other calls. Calls of the others overlap neither each other
// nor Apply.
type Abilities struct {
	// Operations returns the number of kernel operations since the backend was made. One operation
	// is, depending on the backend, an element written, a rule, a call.
	Operations func() uint64
	// Drifted reports, at little cost, whether another program may have changed the dataplane since
	// the backend last read it. It may return true without need, and never returns false after a
	// change that the backend can see. With it, a resync calls Apply only if there may be drift.
	Drifted func(ctx context.Context) bool
	// WaitDrift returns nil when the backend has noticed that another program has changed the
	// dataplane, and an error when ctx ends or waiting fails. With it, the repair of drift begins within a tenth of a second
	// instead of after ResyncInterval. Repairs take at most a tenth of the time, averaged over a
	// minute: if other programs change the dataplane again and again, or after an Apply that took
	// long, a repair may wait until the next resync.
	WaitDrift func(ctx context.Context) error
	// FoundFrontends is not nil if the kernel decides once for each flow, so that a UDP client that keeps its
	// port follows a change of Services only if the FlowCleaner of the Runner removes its stale flow. It
	// returns the UDP and SCTP frontends that the last Apply from the zero Snapshot found, whether
	// they are wanted or not, as service ports with nothing but frontends: a node port has the
	// unspecified address, or is there once for each address at which it is served. It forgets what
	// it returns. A Runner gives the frontends to its FlowCleaner: an earlier process may have left some
	// of Services that were deleted while no process ran.
	FoundFrontends func() []*ServicePort
	// CheckNode returns the settings of the node with which connections to Services of s must fail,
	// whatever is programmed: a [Problem] of kind Node and reason NodeSetting for each, whose Field
	// is the name of the setting and whose error has its value, what fails because of it, and what
	// to do. It checks only what costs little, in the network namespace of the calling thread.
	CheckNode func(s Snapshot) []*Problem
	// CheckLimits returns what the dataplane honours only in part although it serves a port: a
	// [Problem] of kind Service and reason ServedWithLimits for each, whose error says what is
	// honoured, what follows and what to do. It must cost little. A Runner calls it after an Apply,
	// for the ports that the Apply changed. A port that the Backend cannot serve at all is in the
	// [PortErrors] of Apply instead.
	CheckLimits func(node *Node, port *ServicePort) []*Problem
	// CountTraffic calls each with the traffic of service ports of s, usually the snapshot that the
	// dataplane holds. It leaves out service ports that the dataplane does not have.
	CountTraffic func(ctx context.Context, s Snapshot, each func(ServicePortName, Traffic)) error
	// CountRules returns the numbers of iptables rules of each family and table. It reads nothing
	// from the kernel.
	CountRules func() []RuleCount
	// CountConnections returns the numbers of a backend that carries connections itself.
	CountConnections func() ConnectionCounts
	// Drain stops accepting connections, and waits until the open ones have ended, or ctx ends. Only
	// Close may be called afterwards. Connections of a backend without Drain do not end with it.
	Drain func(ctx context.Context) error
}

// NoAbilities is embedded in a [Backend] that has no abilities and nothing to close. Only Apply and
// Cleanup are left to write.
type NoAbilities struct{}

// Abilities implements [Backend].
func (NoAbilities) Abilities() Abilities { return Abilities{} }

// Close implements [Backend].
func (NoAbilities) Close() error { return nil }

// Traffic has the totals of a service port. They restart at zero when the kernel object is
// recreated.
type Traffic struct {
	// Connections counts the connections that the dataplane has forwarded.
	Connections uint64
	// PacketsIn and BytesIn count what went to endpoints, PacketsOut and BytesOut what came back.
	PacketsIn, PacketsOut, BytesIn, BytesOut uint64
}

// RuleCount has the numbers of rules of one table.
type RuleCount struct {
	// Family is the IP family of the table.
	Family v1.IPFamily
	// Table is the name, such as nat.
	Table string
	// Existing counts the rules of the backend, also those in chains of the kernel, as the backend
	// has written or found them.
	Existing int
	// Written counts the rules that the last Apply wrote.
	Written int
}

// ConnectionCounts are the numbers of a backend that carries connections itself. Connections and
// Sessions are how many there are now; the others are totals since the start.
type ConnectionCounts struct {
	// Connections counts open TCP connections, Sessions open UDP sessions.
	Connections, Sessions int
	// Accepted counts accepted TCP connections.
	Accepted uint64
	// Failed counts connections and sessions for which no endpoint could be reached, Denied
	// connections and sessions that no route forwards.
	Failed, Denied uint64
	// Crowded counts connections and datagrams beyond a limit: of a client, of a service
	// port, of the backend, or of source ports and descriptors. It also counts sessions that
	// newer ones have replaced.
	Crowded uint64
	// Faults counts errors of listeners.
	Faults uint64
	// Fault is the last error of a listener, nil if there was none.
	Fault error
	// BytesIn counts the data of connections and datagrams for endpoints, BytesOut for clients.
	BytesIn, BytesOut uint64
}
