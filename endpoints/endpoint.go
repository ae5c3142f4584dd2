package endpoints

import (
	"cmp"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Endpoint is one address and port that can answer for a service port, as one
// node sees it. It is a comparable value. Lists hold pointers, so that they share
// what they have in common; what is in a list is never changed.
type Endpoint struct {
	// Addr is where the endpoint answers.
	Addr netip.AddrPort
	// NodeName is the node that the endpoint runs on; empty when not known.
	NodeName string
	// Ready, Serving and Terminating are the conditions of the EndpointSlice
	// API with their defaults filled in: ready and serving unless it says
	// otherwise, terminating only if it says so.
	Ready, Serving, Terminating bool
	// Local says that the endpoint runs on the node that looks.
	Local bool
	// ZoneHint and NodeHint are the topology hints, seen from this node.
	ZoneHint, NodeHint Hint
}

// Hint is a topology hint of an endpoint as one node sees it.
type Hint uint8

// A hint is absent, names others, or names the node (or zone) that looks.
const (
	HintNone Hint = iota
	HintElsewhere
	HintHere
)

// String gives none, elsewhere or here.
func (h Hint) String() string {
	return [...]string{"none", "elsewhere", "here", "?"}[h&3]
}

// MarshalText gives what String gives, so that JSON has names and not numbers.
func (h Hint) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// Usable reports whether the endpoint may get traffic at all: it is ready, or
// it still serves while it terminates.
func (e *Endpoint) Usable() bool {
	return e.Ready || e.Serving && e.Terminating
}

// Compare orders endpoints by address, then by preference: of two records of
// one address the preferred one comes first (not terminating, ready, serving),
// and the rest only makes the order total.
func (e *Endpoint) Compare(o *Endpoint) int {
	// Addresses alone nearly always decide, and sorting depends on this.
	if c := e.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	return cmp.Or(
		falseFirst(e.Terminating, o.Terminating),
		falseFirst(!e.Ready, !o.Ready),
		falseFirst(!e.Serving, !o.Serving),
		cmp.Compare(e.NodeName, o.NodeName),
		falseFirst(!e.Local, !o.Local),
		cmp.Compare(e.NodeHint, o.NodeHint),
		cmp.Compare(e.ZoneHint, o.ZoneHint),
	)
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// PortKey names one port of one Service in one IP family: what an EndpointSlice
// port and a Service port must agree on.
type PortKey struct {
	Service  types.NamespacedName
	Port     string
	Protocol v1.Protocol
	Family   v1.IPFamily
}
