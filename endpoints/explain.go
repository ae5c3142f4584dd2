package endpoints

// Explanation says of one endpoint whether [Select] selects it for each policy that is
// requested, and why, as a few words for people.
type Explanation struct {
	// InCluster and InLocal say whether the selections of these policies have the endpoint.
	InCluster, InLocal bool
	// ClusterReason and LocalReason are empty for a policy that is not requested.
	ClusterReason, LocalReason string
}

// Explain explains what Select does with the same arguments: its i-th result is about all[i].
func Explain(all []*Endpoint, p Policy) []Explanation {
	n := takeCensus(all)
	out := make([]Explanation, len(all))
	cluster, local := n.clusterRule(), n.localRule(p.LocalFallback)
	likeCluster := n.localIsCluster(p)
	for i, e := range all {
		x := &out[i]
		if p.Cluster {
			x.InCluster, x.ClusterReason = cluster.explain(e)
		}
		switch {
		case likeCluster:
			if x.InLocal, x.LocalReason = cluster.explain(e); x.InLocal {
				x.LocalReason += "; all endpoints on this node terminate"
			}
		case p.Local && !e.Local:
			x.LocalReason = "on another node"
		case p.Local:
			x.InLocal, x.LocalReason = local.explain(e)
		}
	}
	return out
}

// explain reports whether the rule selects an endpoint, and why.
func (r rule) explain(e *Endpoint) (selected bool, why string) {
	switch {
	case r.count > 0 && r.keep(e):
		return true, r.in
	case e.Ready:
		return false, r.out
	case e.Terminating && e.Serving:
		return false, "terminating"
	case e.Terminating:
		return false, "terminating, not serving"
	}
	return false, "not ready"
}
