package nftables

import (
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// rejectChain serves frontends whose route is reject.
const rejectChain = "reject-service"

// verdict adds the chains for the traffic of a frontend, each after those that it refers
// to, and returns the one that serves the frontend.
func (w *portWriter) verdict(f *proxy.Frontend) handle {
	pod, node, outside := f.Routes()
	if !w.node.LocalTraffic.Detects(w.port.Name.Family) {
		pod = node // no rule can identify pods
	}
	nodePort := f.Kind == proxy.NodePort
	last := w.route(outside, nodePort)
	if pod == node && node == outside {
		return last
	}
	v := bySource{pod: w.route(pod, nodePort), node: last, outside: last}
	if node != outside {
		v.node = w.route(node, nodePort)
	}
	masqueraded := pod
	masqueraded.Masquerade = proxy.MasqueradeAlways
	v.masqueradesNode = pod.Action == proxy.Forward && node == masqueraded
	return w.bySource(&v)
}

// bySource are the chains, zero for drop, for traffic of each kind of source.
type bySource struct {
	pod, node, outside handle
	// masqueradesNode is true if the node's own traffic is treated as traffic of pods, but
	// masqueraded.
	masqueradesNode bool
}

// bySource adds the chain that selects the chain for each kind of source.
func (w *portWriter) bySource(v *bySource) handle {
	pod, node, outside, traffic := text(v.pod), text(v.node), text(v.outside), w.node.LocalTraffic
	var name string
	switch {
	case v.masqueradesNode && v.node == v.outside:
		name = "masquerade-nonpods-" + pod
	case v.masqueradesNode:
		name = "inside-" + pod + "-outside-" + orDrop(outside)
	default:
		name = "pod-" + orDrop(pod) + "-node-" + orDrop(node) + "-outside-" + orDrop(outside)
	}
	return w.chain(name, detailsOf(traffic), kindSourceChain, func(a *nft.Assembler) {
		for _, pods := range a.FromPods(traffic) {
			a.Rule(pods, end(a, pod))
		}
		if node != outside {
			a.Rule(a.SourceIsLocal(), end(a, node))
		}
		a.Rule(end(a, outside))
	})
}

// detailsOf returns all criteria by which a node identifies the traffic of its pods.
func detailsOf(t proxy.LocalTraffic) string {
	b := append(make([]byte, 0, 96), t.Interface...)
	b = append(append(b, ' '), t.InterfacePrefix...)
	for _, p := range t.Sources {
		b = p.AppendTo(append(b, ' '))
	}
	return string(b)
}

func orDrop(chain string) string {
	if chain == "" {
		return "drop"
	}
	return chain
}

// end writes a goto to a chain; a drop if the name is empty.
func end(a *nft.Assembler, chain string) nft.Statement {
	if chain == "" {
		return a.Drop()
	}
	return a.Goto(chain)
}

// route adds the chains for one route and returns the first one; none means drop.
func (w *portWriter) route(r proxy.TrafficRoute, nodePort bool) handle {
	switch r.Action {
	case proxy.Drop:
		return handle{}
	case proxy.Reject:
		return handleOf(rejectChain)
	case proxy.Pass, proxy.Forward:
	}
	class := classOf(len(w.port.Pool(r.Pool)))
	name := "pick-"
	if nodePort {
		name += "nodeport-"
	}
	if r.Pool == proxy.PoolLocal {
		name += "local-"
	}
	chain := w.chain(name+className(class), "", kindPickChain, func(a *nft.Assembler) {
		pickChain(a, class, endpointsMap(r.Pool, nodePort), nodePort)
	})
	if w.affinity != "" {
		picks, proto, set := text(chain), w.proto, affinityMap(w.affinity, r.Pool)
		chain = w.chain("stick-"+w.affinity+"-"+picks, "", kindStickChain, func(a *nft.Assembler) {
			a.Rule(stick(a, proto, set))
			a.Rule(a.Goto(picks))
		})
	}
	if r.Masquerade == proxy.MasqueradeAlways {
		plain := text(chain)
		chain = w.chain("masquerade-"+plain, "", kindMasqueradeChain, func(a *nft.Assembler) {
			a.Rule(a.SetMark())
			a.Rule(a.Goto(plain))
		})
	}
	return chain
}
