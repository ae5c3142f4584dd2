package iptables

import (
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/proxy"
)

// renderer renders the chains and rules that service ports of one family need. It is
// immutable.
type renderer struct {
	family v1.IPFamily
	mark   uint32
	names  names
	// services, external, nodePorts, markMasq and reject are names of chains that rules of
	// many service ports contain.
	services, external, nodePorts, markMasq, reject string
}

// settings are the settings of the kernel on which rules depend.
type settings struct {
	// liberal says that connection tracking accepts TCP packets whatever their sequence numbers are.
	liberal bool
}

func newRenderer(o Options, family v1.IPFamily) *renderer {
	n := newNames(o.Identity.Name)
	return &renderer{
		family: family, mark: o.Identity.Mark, names: n,
		services:  n.chain(chainServices),
		external:  n.chain(chainExternalServices),
		nodePorts: n.chain(chainNodePorts),
		markMasq:  n.chain(chainMarkMasq),
		reject:    n.chain(chainReject),
	}
}

// render appends the objects that a service port needs; without a port, those that do not
// depend on service ports.
func (r *renderer) render(env backends.Env, port *proxy.ServicePort, out []xtables.Object) []xtables.Object {
	switch {
	case port == nil:
		s, _ := env.Facts.(settings)
		n := nodeRenderer{r, env.Node, s}
		return n.static(out)
	case port.Name.Family != r.family:
		return out
	}
	w := portWriter{
		nodeRenderer: nodeRenderer{renderer: r, node: env.Node}, port: port, out: out, start: len(out),
		proto: protocolName(port.Name.Protocol), text: safe(portText(port.Name)),
	}
	w.write()
	return w.out
}

// nodeRenderer renders for one node.
type nodeRenderer struct {
	*renderer
	node *proxy.Node
	settings
}

// static appends the chains and rules that do not depend on service ports.
func (n *nodeRenderer) static(out []xtables.Object) []xtables.Object {
	w := staticWriter{nodeRenderer: n, out: out}
	w.nat()
	w.filter()
	return w.out
}

// staticWriter appends the chains and rules that do not depend on service ports.
type staticWriter struct {
	*nodeRenderer
	out []xtables.Object
}

func (w *staticWriter) chain(t xtables.Table, name string, rules ...string) {
	w.out = append(w.out, xtables.Object{Key: xtables.Key{Table: t, Chain: w.names.chain(name)}, Value: xtables.Lines(rules)})
}

func (w *staticWriter) rule(t xtables.Table, in, text string, back bool) {
	w.out = append(w.out, xtables.Object{Key: xtables.Key{Table: t, Chain: in, Rule: text, Back: back}})
}

// hook adds a jump from one of the kernel's own chains.
func (w *staticWriter) hook(t xtables.Table, in, match, chain string) {
	w.rule(t, in, match+jump(w.names.chain(chain)), false)
}

func (w *staticWriter) nat() {
	w.chain(xtables.NAT, chainServices)
	w.chain(xtables.NAT, chainNodePorts)
	w.chain(xtables.NAT, chainMarkMasq, w.markRule())
	w.chain(xtables.NAT, chainInput, w.unmarkRule())
	w.chain(xtables.NAT, chainPostrouting, w.postrouting()...)
	if len(w.podMatches()) > 1 {
		w.chain(xtables.NAT, chainMarkNonPods, w.markNonPods()...)
	}
	for _, match := range w.nodePortMatches() {
		w.rule(xtables.NAT, w.services, match+`-m comment --comment "kubernetes service nodeports" `+jump(w.nodePorts), true)
	}
	w.rule(xtables.NAT, w.nodePorts, w.loopback()+"-j RETURN", false)
	w.hook(xtables.NAT, "PREROUTING", w.names.Comment("service portals"), chainServices)
	w.hook(xtables.NAT, "OUTPUT", w.names.Comment("service portals"), chainServices)
	w.hook(xtables.NAT, "INPUT", w.names.Comment("input rules"), chainInput)
	w.hook(xtables.NAT, "POSTROUTING", w.names.Comment("postrouting rules"), chainPostrouting)
}

// markNonPods returns the rules that mark all packets except packets of pods, for nodes with
// more than one match for pods.
func (n *nodeRenderer) markNonPods() []string {
	var rules []string
	for _, match := range n.podMatches() {
		rules = append(rules, match+"-j RETURN")
	}
	return append(rules, n.markRule())
}
