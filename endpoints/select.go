package endpoints

// Policy says which of the two selections a service port uses.
type Policy struct {
	// Cluster and Local ask for the selections of these traffic policies. A
	// port whose policies for internal and external traffic differ needs both.
	Cluster, Local bool
	// LocalFallback is what Local does without a ready local endpoint.
	LocalFallback LocalFallback
}

// LocalFallback says what a Local traffic policy selects on a node that has
// local endpoints but none that is ready.
type LocalFallback uint8

const (
	// FallbackTerminating takes the local endpoints that terminate but still
	// serve. It is what Kubernetes does since 1.26.
	FallbackTerminating LocalFallback = iota
	// FallbackNone takes none.
	FallbackNone
	// FallbackCluster takes all endpoints as if the policy were Cluster, when
	// the local ones are all terminating. When they are not, it takes none.
	FallbackCluster
)

// Topology says by which hints the Cluster policy chose among the ready endpoints.
type Topology uint8

// What can narrow the choice.
const (
	// TopologyNone took all of them.
	TopologyNone Topology = iota
	// TopologySameZone took those that are hinted to the zone of this node.
	TopologySameZone
	// TopologySameNode took those that are hinted to this node.
	TopologySameNode
)

// Selection is what [Select] selects. Its lists are sorted by address; they may
// share memory with each other and with the list they were selected from, so
// nobody may change them.
type Selection struct {
	// Cluster are the endpoints for the Cluster policy, Local those for the
	// Local policy. A list that was not asked for, or is empty, is nil.
	Cluster, Local []*Endpoint
	// Any says that some endpoint, here or elsewhere, can serve. Where it is
	// false traffic is rejected; where it is true and the list of the policy
	// is empty, traffic is dropped.
	Any bool
	// Topology is what narrowed the selection of the Cluster policy.
	Topology Topology
	// LocalIsCluster says that [FallbackCluster] took effect: Local holds what
	// the Cluster policy selects.
	LocalIsCluster bool
}

// Select selects from all endpoints of a service port. They must be sorted by
// [Endpoint.Compare], no two with one address, as [Cache.Endpoints] gives them;
// they are not changed. Select copies only where some endpoints qualify and
// others do not: where all do, which is the usual case, the result is the very
// list that was passed.
func Select(all []*Endpoint, p Policy) Selection {
	n := takeCensus(all)
	s := Selection{
		Any: n.ready+n.draining > 0,
		LocalIsCluster: p.Local && p.LocalFallback == FallbackCluster &&
			n.localReady == 0 && n.local > 0 && n.localTerminating == n.local,
	}
	if p.Cluster || s.LocalIsCluster {
		s.Cluster, s.Topology = selectCluster(all, &n)
	}
	switch {
	case s.LocalIsCluster:
		s.Local = s.Cluster
	case p.Local && n.localReady > 0:
		s.Local = pick(all, n.localReady, func(e *Endpoint) bool { return e.Local && e.Ready })
	case p.Local && p.LocalFallback == FallbackTerminating:
		s.Local = pick(all, n.localDraining, func(e *Endpoint) bool { return e.Local && draining(e) })
	}
	if !p.Cluster {
		s.Cluster = nil
	}
	return s
}

func selectCluster(all []*Endpoint, n *census) ([]*Endpoint, Topology) {
	switch {
	case n.ready == 0:
		return pick(all, n.draining, draining), TopologyNone
	case n.nodeHinted == n.ready && n.nodeHere > 0:
		return pick(all, n.nodeHere, func(e *Endpoint) bool { return e.Ready && e.NodeHint == HintHere }), TopologySameNode
	case n.zoneHinted == n.ready && n.zoneHere > 0:
		return pick(all, n.zoneHere, func(e *Endpoint) bool { return e.Ready && e.ZoneHint == HintHere }), TopologySameZone
	}
	return pick(all, n.ready, func(e *Endpoint) bool { return e.Ready }), TopologyNone
}

// draining reports whether an endpoint is what a policy falls back to.
func draining(e *Endpoint) bool { return e.Serving && e.Terminating }

// pick gives the endpoints to keep, of which there are n.
func pick(all []*Endpoint, n int, keep func(*Endpoint) bool) []*Endpoint {
	switch n {
	case 0:
		return nil
	case len(all):
		return all
	}
	out := make([]*Endpoint, 0, n)
	for i := 0; len(out) < n; i++ {
		start := i
		for i < len(all) && keep(all[i]) {
			i++
		}
		out = append(out, all[start:i]...)
	}
	return out
}

// census counts endpoints by what matters to a selection.
type census struct {
	ready, draining                                    int
	local, localReady, localDraining, localTerminating int
	// Of the ready endpoints, those that carry a hint and those whose hint
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
