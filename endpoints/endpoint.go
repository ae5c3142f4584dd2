package endpoints

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vipkit/vipkit/internal/enum"
)

// Endpoint is one address and port that serves a service port, as one node sees
// it. It is a comparable value. Lists hold pointers, so that they share endpoints;
// an Endpoint in a list never changes.
type Endpoint struct {
	// Addr is the address and port that the endpoint listens on.
	Addr netip.AddrPort
	// NodeName is the node that the endpoint runs on; empty when not known.
	NodeName string
	// Ready, Serving and Terminating are the conditions of the EndpointSlice
	// API with their defaults filled in: ready and serving unless they are
	// false there, terminating only if it is true there.
	Ready, Serving, Terminating bool
	// Local says that the endpoint runs on this node.
	Local bool
	// ZoneHint and NodeHint are the topology hints, seen from this node.
	ZoneHint, NodeHint Hint
}

// Hint is a topology hint of an endpoint as one node sees it.
type Hint uint8

// The hints.
const (
	// HintNone: there is no hint.
	HintNone Hint = iota
	// HintElsewhere: hints name only other nodes, or zones.
	HintElsewhere
	// HintHere: a hint names this node, or zone.
	HintHere
)

// String returns none, elsewhere or here.
func (h Hint) String() string { return enum.Name(h, "none", "elsewhere", "here") }

// MarshalText returns what String returns, so that JSON has names and not numbers. A value that
// has no name is an error.
func (h Hint) MarshalText() ([]byte, error) { return enum.Marshal(h, HintHere) }

// UnmarshalText reads what MarshalText returns.
func (h *Hint) UnmarshalText(text []byte) error { return enum.Unmarshal(h, HintHere, text) }

// String returns the address and port, and in brackets what the endpoint is: "10.0.0.1:80 (ready,
// local, on node-1)". It is for people; its form may change.
func (e *Endpoint) String() string {
	if e == nil {
		return "none"
	}
	var is []string
	for _, c := range []struct {
		holds bool
		text  string
	}{
		{e.Ready, "ready"},
		{!e.Ready, "not ready"},
		{!e.Ready && e.Serving, "serving"},
		{e.Terminating, "terminating"},
		{e.Local, "local"},
		{e.NodeName != "", "on " + e.NodeName},
		{e.NodeHint != HintNone, "node hint " + e.NodeHint.String()},
		{e.ZoneHint != HintNone, "zone hint " + e.ZoneHint.String()},
	} {
		if c.holds {
			is = append(is, c.text)
		}
	}
	return fmt.Sprintf("%v (%s)", e.Addr, strings.Join(is, ", "))
}

// Compare orders endpoints by address, then by preference: of two records of
// one address the preferred one is first (not terminating, ready, serving). The
// other fields only make the order total.
func (e *Endpoint) Compare(o *Endpoint) int {
	// The fast path of sorting: addresses nearly always differ.
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
