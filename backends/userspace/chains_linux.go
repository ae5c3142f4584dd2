package userspace

import (
	"hash/fnv"
	"net/netip"

	"github.com/google/nftables/expr"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Levels of chains: a chain leads to chains of lower levels only.
const (
	levelAction uint8 = iota
	levelSource
	levelServices
	levelBase
)

// chainDefinition is what a chain consists of.
type chainDefinition struct {
	base  nfnetlink.BaseChain
	rules []rule
	err   error
}

// capturePriority is before packets are routed and other programs translate them,
// and after those that mark them, as most do at -150: nothing overwrites our mark.
const capturePriority = -140

// static appends what a table holds whatever the Services are.
func (r *renderer) static(node *proxy.Node, fam nfnetlink.Family, out []object) []object {
	out = append(out, object{Key: key{kind: kindRouting, fam: fam}}, object{Key: key{kind: kindTable, fam: fam}})
	for _, s := range sets() {
		out = append(out, object{Key: key{kind: kindSet, fam: fam, name: s.Name}, Value: value{hash: specHash(s.Spec(fam))}})
	}
	w := chainWriter{statements: statements{fam: fam, mark: r.options.Identity.Mark}, node: node, options: r.options}
	add := func(name string, level uint8, d chainDefinition) {
		hash := d.hash(fam)
		r.rules[0][hash] = d
		out = append(out, object{Key: key{kind: kindChain, fam: fam, level: level, name: name}, Value: value{hash: hash}})
	}
	for _, a := range actions() {
		add(verdictChain(a, a), levelAction, chainDefinition{rules: w.action(a)})
		for _, o := range actions() {
			if a != o {
				add(verdictChain(a, o), levelSource, chainDefinition{rules: w.bySource(a, o)})
			}
		}
	}
	add(chainServices, levelServices, chainDefinition{rules: w.services()})
	if r.options.Capture == Redirect {
		bases := w.redirectBases(r.options.Identity.Priority)
		for _, name := range [...]string{chainPrerouting, chainOutput} {
			add(name, levelBase, bases[name])
		}
		return out
	}
	priority := capturePriority + r.options.Identity.Priority
	add(chainPrerouting, levelBase, chainDefinition{
		base:  nfnetlink.BaseChain{Type: "filter", Hook: nfnetlink.Prerouting, Priority: priority},
		rules: w.prerouting(),
	})
	add(chainOutput, levelBase, chainDefinition{
		base:  nfnetlink.BaseChain{Type: "route", Hook: nfnetlink.Output, Priority: priority},
		rules: w.output(),
	})
	add(chainBridged, levelBase, w.bridged(r.options.Identity.Priority))
	add(chainPostrouting, levelBase, chainDefinition{
		base:  nfnetlink.BaseChain{Type: "filter", Hook: nfnetlink.Postrouting, Priority: priority},
		rules: w.postrouting(),
	})
	return out
}

// hash stands for all that a chain consists of. An error that the rules cannot
// be encoded is kept for when they are written.
func (d *chainDefinition) hash(fam nfnetlink.Family) uint64 {
	h := fnv.New64a()
	write := func(b ...byte) { _, _ = h.Write(b) } // a hash does not fail
	write([]byte(d.base.Type)...)
	write(byte(fam), byte(d.base.Hook), byte(d.base.Priority), byte(d.base.Priority>>8))
	for _, r := range d.rules {
		write(0xff)
		for _, e := range r {
			b, err := expr.Marshal(byte(fam), e)
			if err != nil {
				d.err = err
			}
			write(b...)
		}
	}
	return h.Sum64()
}

type chainWriter struct {
	statements
	node    *proxy.Node
	options *Options
}

// action is what becomes of all packets of a kind. For TPROXY, what is captured is
// marked; the chain that has asked does the rest.
func (w *chainWriter) action(a string) []rule {
	switch a {
	case "capture":
		if w.options.Capture == Redirect {
			return w.redirect()
		}
		return []rule{w.setMark()}
	case "reject":
		return []rule{w.reject()}
	case "drop":
		return []rule{{&expr.Verdict{Kind: expr.VerdictDrop}}}
	}
	return []rule{{&expr.Verdict{Kind: expr.VerdictReturn}}}
}

// bySource tells the traffic of pods and of the node itself from other traffic.
func (w *chainWriter) bySource(inside, outside string) []rule {
	var rules []rule
	in := to(expr.VerdictGoto, verdictChain(inside, inside))
	for _, from := range w.fromPods() {
		rules = append(rules, join(from, in))
	}
	return append(rules, join(w.sourceIsLocal(), in), to(expr.VerdictGoto, verdictChain(outside, outside)))
}

// fromPods gives a match for each criterion by which the packets of pods are
// known.
func (w *chainWriter) fromPods() []rule {
	t := w.node.LocalTraffic
	var all []rule
	for _, p := range t.Sources {
		if w.isOurs(p) {
			all = append(all, w.source(p))
		}
	}
	if t.Interface != "" {
		all = append(all, w.interfaceIs(t.Interface, expr.CmpOpEq))
	}
	if t.InterfacePrefix != "" {
		all = append(all, w.interfacePrefix(t.InterfacePrefix))
	}
	return all
}

func (w *chainWriter) isOurs(p netip.Prefix) bool {
	return familyOf(ipaddr.FamilyOf(p.Addr())) == w.fam
}

// services looks packets up. Nothing but the ports of Services is served at
// ClusterIPs, and nothing at all at addresses that no Service has.
func (w *chainWriter) services() []rule {
	rules := []rule{
		w.verdictMap(setRestricted, false),
		w.verdictMap(setFrontends, false),
	}
	at := []rule{nil}
	if !w.node.NodePorts.All {
		at = nil
		for _, p := range w.node.NodePorts.Prefixes {
			if w.isOurs(p) {
				at = append(at, w.destination(p, expr.CmpOpEq))
			}
		}
	}
	for _, within := range at {
		rules = append(rules, join(w.destination(w.loopback(), expr.CmpOpNeq), within, w.destinationIsLocal(), w.verdictMap(setNodePorts, true)))
	}
	rules = append(rules, join(w.destinationInSet(setClusterIPs), w.reject()))
	for _, p := range w.node.ServiceCIDRs {
		if w.isOurs(p) {
			rules = append(rules, join(w.destination(p, expr.CmpOpEq), rule{&expr.Verdict{Kind: expr.VerdictDrop}}))
		}
	}
	return rules
}

// prerouting leads packets to the sockets of the backend: those of connections
// that it has, wherever they stand, then new ones. What is to be captured while
// nobody listens is dropped.
func (w *chainWriter) prerouting() []rule {
	accept := rule{&expr.Verdict{Kind: expr.VerdictAccept}}
	rules := []rule{
		// Answers of endpoints. Only ports that clients do not use are
		// looked at: a socket that is about to end must not draw in what a
		// client has begun by itself from the same port.
		join(w.portInRange(destinationPort), w.ownSocket(), w.setMark(), accept),
		// Nothing begins with a reply, but to an answer of ours that came
		// when nobody remembered the question.
		join(w.direction(replyDirection), w.connectionMarked(expr.CmpOpEq), accept),
		join(w.direction(replyDirection), w.portInRange(destinationPort), w.marked(expr.CmpOpNeq), accept),
		// What clients send, also to frontends that are no more.
		join(w.ownSocket(), w.setMark(), accept),
		// The same, of connections that were translated as they came by a bridge.
		join(w.comesByBridge(expr.CmpOpEq), w.isEstablished(), accept),
		// All that the node sends to itself has been decided on in output.
		join(w.interfaceIs("lo", expr.CmpOpNeq), to(expr.VerdictJump, chainServices)),
		join(w.marked(expr.CmpOpEq), accept),
		// A later chain translates these.
		join(w.comesByBridge(expr.CmpOpEq), accept),
	}
	rules = append(rules, w.doors(w.interfaceIs("lo", expr.CmpOpEq), doorNode)...)
	for _, from := range w.fromPods() {
		rules = append(rules, w.doors(from, doorPod)...)
	}
	rules = append(rules, w.doors(nil, doorOutside)...)
	return append(rules, rule{&expr.Verdict{Kind: expr.VerdictDrop}})
}

// doors hands packets to the sockets for one kind of source.
func (w *chainWriter) doors(from rule, d door) []rule {
	at := d.address(w.options, w.fam)
	return []rule{join(from, w.transparent(protoTCP, at)), join(from, w.transparent(protoUDP, at))}
}

// output leads packets of the node itself into prerouting by marking them, but
// not those of the backend.
func (w *chainWriter) output() []rule {
	accept := rule{&expr.Verdict{Kind: expr.VerdictAccept}}
	own := join(w.portInRange(sourcePort), w.transparentSocket())
	return []rule{
		// Late answers on connections that were translated, which nobody remembers.
		join(w.direction(originalDirection), w.source(doorsPrefix(w.options, w.fam)), rule{&expr.Verdict{Kind: expr.VerdictDrop}}),
		// An answer to a datagram, of which connection tracking has forgotten
		// the question: what comes back is the client's next question.
		join(w.direction(originalDirection), w.namelessSocket(), w.setConnectionMark()),
		// An endpoint in the node's own network answers to the client's
		// address, past the backend, if nothing leads it back.
		join(own, w.direction(originalDirection), w.destinationIsLocal(), w.setConnectionMark(), accept),
		join(own, accept),
		// An answer on a connection that has been forgotten. What comes back
		// is no reply either.
		join(w.direction(originalDirection), w.transparentSocket(), w.setConnectionMark()),
		join(w.direction(replyDirection), w.portInRange(destinationPort), w.connectionMarked(expr.CmpOpNeq), w.setMark(), accept),
		// Nothing begins with a reply, whatever has the address that it goes
		// to, as in prerouting.
		join(w.direction(replyDirection), w.connectionMarked(expr.CmpOpEq), accept),
		to(expr.VerdictJump, chainServices),
	}
}

// postrouting stops what is marked and leaves the node all the same, as it does
// where somebody has taken the routing rule away: nobody has translated it.
func (w *chainWriter) postrouting() []rule {
	return []rule{join(w.marked(expr.CmpOpNeq), w.leavesBy("lo", expr.CmpOpNeq), rule{&expr.Verdict{Kind: expr.VerdictDrop}})}
}
