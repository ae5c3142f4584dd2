package proxy

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// TrafficCounter is an optional ability of a [Backend], for dataplanes that count what they
// forward. Package prommetrics has metrics of it.
type TrafficCounter interface {
	// CountTraffic calls each with the traffic of service ports of s, usually the snapshot that
	// the dataplane holds. It leaves out service ports that the dataplane does not have. It may
	// be called from any goroutine.
	CountTraffic(ctx context.Context, s Snapshot, each func(ServicePortName, Traffic)) error
}

// Traffic has the totals of a service port. They restart at zero when the kernel object is
// recreated.
type Traffic struct {
	// Connections counts the connections that the dataplane has forwarded.
	Connections uint64
	// PacketsIn and BytesIn count what went to endpoints, PacketsOut and BytesOut what came back.
	PacketsIn, PacketsOut, BytesIn, BytesOut uint64
}

// RuleCounter is an optional ability of a [Backend] that writes rules of iptables. Package prommetrics
// has metrics of it.
type RuleCounter interface {
	// CountRules returns the numbers of rules of each family and table. It reads nothing from the
	// kernel, and may be called from any goroutine.
	CountRules() []RuleCount
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

// ConnectionCounter is an optional ability of a [Backend] that carries connections itself.
// Package prommetrics has metrics of it.
type ConnectionCounter interface {
	// CountConnections may be called from any goroutine.
	CountConnections() ConnectionCounts
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
