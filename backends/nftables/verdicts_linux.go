package nftables

import (
	"strings"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Levels of chains: a chain goes to chains of lower levels only.
const (
	levelReject = iota
	levelPick
	levelStick
	levelMasquerade
	levelSource
	levelDispatch
	levelBase
)

// rejectChain is where frontends without endpoints lead.
const rejectChain = "reject-service"

// verdictQuery is all that decides where a frontend leads.
type verdictQuery struct {
	fam      family
	proto    uint8
	nodePort bool
	// affinity is the part of the names of a service port's own affinity maps;
	// empty without affinity.
	affinity           string
	pod, node, outside path
}

// path is what becomes of the traffic of one kind of source.
type path struct {
	action     proxy.Action
	pool       proxy.Pool
	class      uint32
	masquerade bool
}

// verdict is where a frontend leads, with the chains that it takes, those of
// lower level first.
type verdict struct {
	ref    name
	chains []object
}

// query asks for the verdict on a frontend.
func query(port *proxy.ServicePort, f *proxy.Frontend, affinity string) verdictQuery {
	to := func(r proxy.TrafficRoute, pod bool) path {
		if r.Action != proxy.Forward {
			return path{action: r.Action}
		}
		return path{
			action:     proxy.Forward,
			pool:       r.Pool,
			class:      classOf(len(port.Pool(r.Pool))),
			masquerade: r.Masquerade == proxy.MasqueradeAlways || r.Masquerade == proxy.MasqueradeNonPods && !pod,
		}
	}
	q := verdictQuery{
		fam:      familyOf(port.Name.Family),
		nodePort: f.Kind == proxy.NodePort,
		pod:      to(f.FromInside, true),
		node:     to(f.FromInside, false),
		outside:  to(f.FromOutside, false),
	}
	if affinity != "" {
		q.affinity, q.proto = affinity, protocolNumber(port.Name.Protocol)
	}
	return q
}

// verdict answers a query. Answers that are not one service port's own are kept.
func (p *page) verdict(q verdictQuery) *verdict {
	if v, ok := p.verdicts[q]; ok {
		return v
	}
	w := verdictWriter{page: p, query: q}
	v := &verdict{ref: p.names.of(q.fam).number(w.bySource())}
	v.chains = w.chains
	if q.affinity == "" {
		p.verdicts[q] = v
	}
	return v
}

type verdictWriter struct {
	page   *page
	query  verdictQuery
	chains []object
}

// add gives the name of a chain after it has noted it.
func (w *verdictWriter) add(name string, level uint8, build func(*assembler)) string {
	o := w.page.chainObject(chainSpec{
		fam: w.query.fam, name: name, level: level,
		lasting: w.query.affinity == "" || !strings.Contains(name, w.query.affinity),
	}, build)
	for _, have := range w.chains {
		if have.Key == o.Key {
			return name
		}
	}
	w.chains = append(w.chains, o)
	return name
}

// bySource leads each kind of source to its path. Which sources are pods, the
// node tells; without any means to tell them there are none.
func (w *verdictWriter) bySource() string {
	q := &w.query
	detects := w.page.node.LocalTraffic.Detects(q.fam.api())
	if !detects {
		q.pod = q.node
	}
	outside := w.path(q.outside)
	if q.pod == q.node && q.node == q.outside {
		return outside
	}
	pod, node := w.path(q.pod), w.path(q.node)
	name := "pod-" + orDrop(pod) + "-node-" + orDrop(node) + "-outside-" + orDrop(outside)
	masqueraded := q.pod
	masqueraded.masquerade = true
	switch {
	case q.node == masqueraded && q.outside == q.node:
		name = "masquerade-nonpods-" + pod
	case q.node == masqueraded:
		name = "inside-" + pod + "-outside-" + orDrop(outside)
	}
	return w.add(name, levelSource, func(a *assembler) {
		a.fromPods(w.page.node.LocalTraffic, pod)
		if q.node != q.outside {
			a.rule(a.sourceIsLocal(), a.end(node))
		}
		a.rule(a.end(outside))
	})
}

func orDrop(ref string) string {
	if ref == "" {
		return "drop"
	}
	return ref
}

// fromPods leads the traffic of pods to a chain, or drops it.
func (a *assembler) fromPods(t proxy.LocalTraffic, ref string) {
	for _, p := range t.Sources {
		if familyOf(ipaddr.FamilyOf(p.Addr())) == a.fam {
			a.rule(a.sourceIn(p), a.end(ref))
		}
	}
	if t.Interface != "" {
		a.rule(a.interfaceIs(t.Interface, false), a.end(ref))
	}
	if t.InterfacePrefix != "" {
		a.rule(a.interfaceIs(t.InterfacePrefix, true), a.end(ref))
	}
}

// path gives the chain for one path; none means drop.
func (w *verdictWriter) path(p path) string {
	switch p.action {
	case proxy.Drop:
		return ""
	case proxy.Reject:
		return rejectChain
	case proxy.Pass, proxy.Forward:
	}
	suffix := ""
	if w.query.nodePort {
		suffix += "nodeport-"
	}
	if p.pool == proxy.PoolLocal {
		suffix += "local-"
	}
	name := w.add("pick-"+suffix+className(p.class), levelPick, func(a *assembler) {
		a.pickChain(p.class, endpointsMap(p.pool, w.query.nodePort), w.query.nodePort)
	})
	if w.query.affinity != "" {
		picks := name
		name = w.add("stick-"+w.query.affinity+"-"+name, levelStick, func(a *assembler) {
			a.rule(a.stick(w.query.proto, affinityMap(w.query.affinity, p.pool)))
			a.rule(a.gotoChain(picks))
		})
	}
	if p.masquerade {
		plain := name
		name = w.add("masquerade-"+name, levelMasquerade, func(a *assembler) {
			a.rule(a.setMark())
			a.rule(a.gotoChain(plain))
		})
	}
	return name
}
