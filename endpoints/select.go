package endpoints

import (
	"slices"

	"github.com/vipkit/vipkit/internal/enum"
)

// Policy has the selections that a service port uses.
type Policy struct {
	// Cluster and Local request the selections of these traffic policies. A
	// port whose policies for internal and external traffic differ needs both.
	Cluster, Local bool
	// LocalFallback is what Local does without a ready local endpoint.
	LocalFallback LocalFallback
}

// LocalFallback is what a Local traffic policy selects on a node that has local
// endpoints of which none is ready.
type LocalFallback uint8

const (
	// FallbackTerminating selects the local endpoints that terminate but still
	// serve, as Kubernetes does since 1.26.
	FallbackTerminating LocalFallback = iota
	// FallbackNone selects none.
	FallbackNone
	// FallbackCluster selects the endpoints of the Cluster policy if all local
	// ones terminate; otherwise it selects none.
	FallbackCluster
)

// String returns terminating, none or cluster.
func (f LocalFallback) String() string { return enum.Name(f, "terminating", "none", "cluster") }

// MarshalText returns what String returns, so that JSON has names and not numbers. A value that
// has no name is an error.
func (f LocalFallback) MarshalText() ([]byte, error) { return enum.Marshal(f, FallbackCluster) }

// UnmarshalText reads what MarshalText returns.
func (f *LocalFallback) UnmarshalText(text []byte) error {
	return enum.Unmarshal(f, FallbackCluster, text)
}

// Selection is the result of [Select]. Its lists are sorted by address. Callers must
// not change them: they may share memory with each other and with the argument of
// Select.
type Selection struct {
	// Cluster are the endpoints for the Cluster policy, Local those for the
	// Local policy. A list that was not requested, or is empty, is nil.
	Cluster, Local []*Endpoint
	// Any says that some endpoint, on this node or another, can serve. If it is
	// false, traffic is rejected; if it is true and the list of the policy is empty,
	// traffic is dropped.
	Any bool
	// LocalIsCluster says that [FallbackCluster] took effect: Local has the
	// endpoints that the Cluster policy selects.
	LocalIsCluster bool
}

// Select selects from all endpoints of a service port; it does not change them. If all of
// them qualify, which is the usual case, the result is the list that was passed; otherwise
// it is a copy. A list that is not as [Cache.Endpoints] returns it is copied and sorted by
// [Endpoint.Compare], and of several endpoints of one address the first one is kept.
// [Cache.Select] does not have to look.
func Select(all []*Endpoint, p Policy) Selection { return selectSorted(sorted(all), p) }

func selectSorted(all []*Endpoint, p Policy) Selection {
	n := takeCensus(all)
	s := Selection{Any: n.ready+n.draining > 0, LocalIsCluster: n.localIsCluster(p)}
	if p.Cluster || s.LocalIsCluster {
		s.Cluster = pick(all, n.clusterRule())
	}
	switch {
	case s.LocalIsCluster:
		s.Local = s.Cluster
	case p.Local:
		s.Local = pick(all, n.localRule(p.LocalFallback))
	}
	if !p.Cluster {
		s.Cluster = nil
	}
	return s
}

// sorted returns a list in order, with each address once. It is the same list if it is so
// already.
func sorted(all []*Endpoint) []*Endpoint {
	for i := 1; i < len(all); i++ {
		if all[i-1].Addr.Compare(all[i].Addr) >= 0 {
			all = slices.SortedFunc(slices.Values(all), (*Endpoint).Compare)
			return slices.CompactFunc(all, func(a, b *Endpoint) bool { return a.Addr == b.Addr })
		}
	}
	return all
}

// rule says which endpoints a policy selects.
type rule struct {
	count int // of endpoints that keep selects
	keep  func(*Endpoint) bool
	// in is why endpoints are selected; out why the others that are ready are not.
	in, out string
}

func (n *census) clusterRule() rule {
	switch {
	case n.ready == 0:
		return rule{n.draining, draining, "terminating but serving, and no endpoint is ready", ""}
	case n.nodeHinted == n.ready && n.nodeHere > 0:
		keep := func(e *Endpoint) bool { return e.Ready && e.NodeHint == HintHere }
		return rule{n.nodeHere, keep, "ready, and a topology hint names this node", "topology hints name other nodes"}
	case n.zoneHinted == n.ready && n.zoneHere > 0:
		keep := func(e *Endpoint) bool { return e.Ready && e.ZoneHint == HintHere }
		return rule{n.zoneHere, keep, "ready, and a topology hint names the zone of this node", "topology hints name other zones"}
	}
	return rule{n.ready, func(e *Endpoint) bool { return e.Ready }, "ready", ""}
}

// localIsCluster reports whether Local selects what Cluster selects.
func (n *census) localIsCluster(p Policy) bool {
	return p.Local && p.LocalFallback == FallbackCluster && n.localReady == 0 && n.local > 0 && n.localTerminating == n.local
}

func (n *census) localRule(fallback LocalFallback) rule {
	switch {
	case n.localReady > 0:
		return rule{n.localReady, func(e *Endpoint) bool { return e.Local && e.Ready }, "ready, on this node", ""}
	case fallback == FallbackTerminating:
		keep := func(e *Endpoint) bool { return e.Local && draining(e) }
		return rule{n.localDraining, keep, "terminating but serving, and no endpoint on this node is ready", ""}
	}
	return rule{0, func(*Endpoint) bool { return false }, "", ""}
}

// draining reports whether a policy falls back to an endpoint if none is ready.
func draining(e *Endpoint) bool { return e.Serving && e.Terminating }

// pick returns the endpoints that a rule selects.
func pick(all []*Endpoint, r rule) []*Endpoint {
	switch r.count {
	case 0:
		return nil
	case len(all):
		return all
	}
	out := make([]*Endpoint, 0, r.count)
	for i := 0; len(out) < r.count; i++ {
		start := i
		for i < len(all) && r.keep(all[i]) {
			i++
		}
		out = append(out, all[start:i]...)
	}
	return out
}

// census counts the endpoints by the properties that a selection depends on.
type census struct {
	ready, draining                                    int
	local, localReady, localDraining, localTerminating int
	// Of the ready endpoints, those that have a hint and those whose hint
	// names this node or zone.
	nodeHinted, nodeHere, zoneHinted, zoneHere int
}

func takeCensus(all []*Endpoint) census {
	var n census
	for i := 0; i < len(all); i++ {
		plain := plainPrefix(all[i:])
		n.ready += plain
		if i += plain; i < len(all) {
			n.add(all[i])
		}
	}
	return n
}

// plainPrefix counts the leading endpoints that are ready, remote and without
// hints: usually nearly all of them, and cheap to recognise.
func plainPrefix(all []*Endpoint) int {
	for i := range all {
		e := all[i]
		if !e.Ready || e.Local || e.NodeHint|e.ZoneHint != HintNone {
			return i
		}
	}
	return len(all)
}

func (n *census) add(e *Endpoint) {
	if draining(e) {
		n.draining++
	}
	if e.Ready {
		n.ready++
		n.nodeHinted += one(e.NodeHint != HintNone)
		n.nodeHere += one(e.NodeHint == HintHere)
		n.zoneHinted += one(e.ZoneHint != HintNone)
		n.zoneHere += one(e.ZoneHint == HintHere)
	}
	if e.Local {
		n.local++
		n.localReady += one(e.Ready)
		n.localDraining += one(draining(e))
		n.localTerminating += one(e.Terminating)
	}
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
