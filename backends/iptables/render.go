package iptables

import (
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/proxy"
)

// renderer renders the chains and rules that service ports of one family need. It is
// immutable.
type renderer struct {
	family v1.IPFamily
	mark   uint32
	names  names
	// services, external, nodePorts and markMasq are names of chains that rules of many
	// service ports contain.
	services, external, nodePorts, markMasq string
	// liberal is true if connection tracking accepts TCP packets whatever their sequence
	// numbers are.
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
	}
}

// render appends the objects that a service port needs; without a port, those that do not
// depend on service ports.
func (r *renderer) render(node *proxy.Node, port *proxy.ServicePort, out []xtables.Object) []xtables.Object {
	switch {
	case port == nil:
		n := nodeRenderer{r, node}
		return n.static(out)
	case port.Name.Family != r.family:
		return out
	}
	w := portWriter{
		nodeRenderer: nodeRenderer{r, node}, port: port, out: out, start: len(out),
		proto: protocolName(port.Name.Protocol), text: safe(portText(port.Name)),
	}
	w.write()
	return w.out
}

// nodeRenderer renders for one node.
type nodeRenderer struct {
	*renderer
	node *proxy.Node
}

// static appends the chains and rules that do not depend on service ports.
func (n *nodeRenderer) static(out []xtables.Object) []xtables.Object {
	if err := xtables.CheckInterfaces(n.node.LocalTraffic); err != nil {
		return append(out, xtables.Refusal(err))
	}
	chain := func(t xtables.Table, name string, rules ...string) {
		out = append(out, xtables.Object{Key: xtables.Key{Table: t, Chain: n.names.chain(name)}, Value: xtables.Lines(rules)})
	}
	rule := func(t xtables.Table, in, text string, back bool) {
		out = append(out, xtables.Object{Key: xtables.Key{Table: t, Chain: in, Rule: text, Back: back}})
	}
	chain(xtables.NAT, chainServices)
	chain(xtables.NAT, chainNodePorts)
	chain(xtables.NAT, chainMarkMasq, n.markRule())
	chain(xtables.NAT, chainInput, n.unmarkRule())
	chain(xtables.NAT, chainPostrouting, n.postrouting()...)
	if len(n.podMatches()) > 1 {
		chain(xtables.NAT, chainMarkNonPods, n.markNonPods()...)
	}
	chain(xtables.Filter, chainServices)
	chain(xtables.Filter, chainExternalServices)
	chain(xtables.Filter, chainNodePorts)
	chain(xtables.Filter, chainProxyFirewall, n.firewall()...)

	for _, match := range n.nodePortMatches() {
		rule(xtables.NAT, n.services, match+`-m comment --comment "kubernetes service nodeports" `+jump(n.nodePorts), true)
	}
	rule(xtables.NAT, n.nodePorts, n.loopback()+"-j RETURN", false)
	rule(xtables.Filter, n.nodePorts, n.loopback()+"-j RETURN", false)
	portals := `-m comment --comment "kubernetes service portals" ` + jump(n.services)
	rule(xtables.NAT, "PREROUTING", portals, false)
	rule(xtables.NAT, "OUTPUT", portals, false)
	rule(xtables.NAT, "INPUT", `-m comment --comment "kubernetes input rules" `+jump(n.names.chain(chainInput)), false)
	rule(xtables.NAT, "POSTROUTING", `-m comment --comment "kubernetes postrouting rules" `+jump(n.names.chain(chainPostrouting)), false)
	for _, hook := range [...]string{"INPUT", "FORWARD", "OUTPUT"} {
		rule(xtables.Filter, hook, `-m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" `+
			jump(n.names.chain(chainProxyFirewall)), false)
	}
	if rules := n.invalid(); len(rules) > 0 {
		chain(xtables.Filter, chainForward, rules...)
		rule(xtables.Filter, "FORWARD", `-m conntrack --ctstate INVALID -m comment --comment "kubernetes forwarding rules" `+
			jump(n.names.chain(chainForward)), false)
	}
	return out
}

// invalid returns the rules that drop packets which connection tracking considers invalid.
// The kernel does not translate them: one from an endpoint would reach the client with the
// endpoint's address, and the client's reset would end the connection. There are no such
// rules if nf_conntrack_tcp_be_liberal is set.
func (n *nodeRenderer) invalid() (rules []string) {
	if n.liberal {
		return nil
	}
	for _, match := range n.podMatches() {
		rules = append(rules, match+"-j DROP")
	}
	return append(rules, n.toServiceRanges()...)
}

// toServiceRanges returns the rules that drop packets for the ranges of ClusterIPs.
func (n *nodeRenderer) toServiceRanges() (rules []string) {
	for _, cidr := range n.node.ServiceCIDRs {
		if n.isOurs(cidr) {
			rules = append(rules, xtables.MatchRange("-d", cidr)+"-j DROP")
		}
	}
	return rules
}

// firewall returns the rules for new connections that were not translated.
func (n *nodeRenderer) firewall() []string {
	rules := []string{
		"-m conntrack --ctstate DNAT -j RETURN",
		jump(n.external),
	}
	for _, match := range n.nodePortMatches() {
		rules = append(rules, match+jump(n.nodePorts))
	}
	// Packets to other ports of ClusterIPs are rejected, and packets to other addresses
	// of the service ranges dropped.
	rules = append(rules, jump(n.services))
	return append(rules, n.toServiceRanges()...)
}

// markNonPods returns the rules that mark all packets except those of pods, for nodes with
// more than one match for pods.
func (n *nodeRenderer) markNonPods() []string {
	var rules []string
	for _, match := range n.podMatches() {
		rules = append(rules, match+"-j RETURN")
	}
	return append(rules, n.markRule())
}
