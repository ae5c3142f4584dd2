package iptables

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// renderer says which chains and rules service ports of one family need.
type renderer struct {
	options Options
	family  v1.IPFamily
	names   names
	// pages are for the last two nodes: while a node changes, both are rendered.
	pages [2]*page
	// remembers is how many clients of an endpoint the kernel remembers.
	remembers uint32
	// lacks are extensions of iptables that are missing, and that not all service ports
	// need.
	lacks []extension
	// liberal says that the kernel takes TCP packets for parts of a connection
	// wherever their numbers are.
	liberal bool
	// buf is memory to write rules in.
	buf []byte
}

func newRenderer(o Options, family v1.IPFamily) *renderer {
	return &renderer{options: o, family: family, names: newNames(o.Identity.Name)}
}

// page is what there is to know for all service ports of one node.
type page struct {
	*renderer
	node *proxy.Node
	pods []string
	// detects says that pods can be told from others.
	detects bool
	err     error
	chains  pageChains
}

// pageChains are names of chains that many rules hold.
type pageChains struct{ services, external, nodePorts, toMark string }

func (r *renderer) page(node *proxy.Node) *page {
	for i, p := range r.pages {
		if p != nil && p.node == node {
			r.pages[0], r.pages[i] = r.pages[i], r.pages[0]
			return p
		}
	}
	p := &page{renderer: r, node: node, err: interfaceFault(node.LocalTraffic)}
	p.pods = p.podMatches()
	p.detects = len(p.pods) > 0
	p.chains = pageChains{
		services:  r.names.chain(chainServices),
		external:  r.names.chain(chainExternalServices),
		nodePorts: r.names.chain(chainNodePorts),
		toMark:    jump(r.names.chain(chainMarkMasq)),
	}
	r.pages[0], r.pages[1] = p, r.pages[0]
	return p
}

// render appends the objects that a service port needs; without a port, those
// that are always there.
func (r *renderer) render(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	p := r.page(node)
	if port == nil {
		return p.static(out)
	}
	if port.Name.Family != r.family {
		return out
	}
	w := portWriter{
		page: p, port: port, out: out, buf: r.buf,
		proto: protocolName(port.Name.Protocol), text: safe(portText(port.Name)),
	}
	w.write()
	r.buf = w.buf[:0]
	return w.out
}

// static appends the chains and rules that are always there.
func (p *page) static(out []object) []object {
	if p.err != nil {
		return append(out, refusal(p.err))
	}
	chain := func(t table, name string, rules ...string) {
		out = append(out, object{Key: key{table: t, chain: p.names.chain(name)}, Value: lines(rules)})
	}
	rule := func(t table, in, text string, back bool) {
		out = append(out, object{Key: key{table: t, chain: in, rule: text, back: back}})
	}
	chain(nat, chainServices)
	chain(nat, chainNodePorts)
	chain(nat, chainMarkMasq, p.markRule())
	chain(nat, chainInput, p.unmarkRule())
	chain(nat, chainPostrouting, p.postrouting()...)
	if len(p.pods) > 1 {
		chain(nat, chainMarkNonPods, p.markNonPods()...)
	}
	chain(filter, chainServices)
	chain(filter, chainExternalServices)
	chain(filter, chainNodePorts)
	chain(filter, chainProxyFirewall, p.firewall()...)

	services, nodePorts := p.chains.services, p.chains.nodePorts
	for _, match := range p.nodePortMatches() {
		rule(nat, services, match+`-m comment --comment "kubernetes service nodeports" `+jump(nodePorts), true)
	}
	rule(nat, nodePorts, p.loopback()+"-j RETURN", false)
	rule(filter, nodePorts, p.loopback()+"-j RETURN", false)
	portals := `-m comment --comment "kubernetes service portals" ` + jump(services)
	rule(nat, "PREROUTING", portals, false)
	rule(nat, "OUTPUT", portals, false)
	rule(nat, "INPUT", `-m comment --comment "kubernetes input rules" `+jump(p.names.chain(chainInput)), false)
	rule(nat, "POSTROUTING", `-m comment --comment "kubernetes postrouting rules" `+jump(p.names.chain(chainPostrouting)), false)
	for _, hook := range [...]string{"INPUT", "FORWARD", "OUTPUT"} {
		rule(filter, hook, `-m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" `+
			jump(p.names.chain(chainProxyFirewall)), false)
	}
	if rules := p.invalid(); len(rules) > 0 {
		chain(filter, chainForward, rules...)
		rule(filter, "FORWARD", `-m conntrack --ctstate INVALID -m comment --comment "kubernetes forwarding rules" `+
			jump(p.names.chain(chainForward)), false)
	}
	return out
}

// invalid are the rules for packets that belong to no connection, though they should.
// Nothing translates these: one from an endpoint would reach the client under the
// endpoint's own address, and the reset that it is answered with ends the connection.
// Whoever has the kernel be liberal about that has reason to see them pass.
func (p *page) invalid() (rules []string) {
	if p.liberal {
		return nil
	}
	for _, match := range p.pods {
		rules = append(rules, match+"-j DROP")
	}
	return append(rules, p.toServiceRanges()...)
}

// toServiceRanges are the rules that drop what is for the ranges of ClusterIPs.
func (p *page) toServiceRanges() (rules []string) {
	for _, cidr := range p.node.ServiceCIDRs {
		if p.isOurs(cidr) {
			rules = append(rules, matchRange("-d", cidr)+"-j DROP")
		}
	}
	return rules
}

// firewall are the rules for new connections that were not translated.
func (p *page) firewall() []string {
	rules := []string{
		"-m conntrack --ctstate DNAT -j RETURN",
		jump(p.names.chain(chainExternalServices)),
	}
	for _, match := range p.nodePortMatches() {
		rules = append(rules, match+jump(p.names.chain(chainNodePorts)))
	}
	// Nothing but the ports of Services is served at ClusterIPs, and nothing
	// at all at addresses that no Service has.
	rules = append(rules, jump(p.names.chain(chainServices)))
	return append(rules, p.toServiceRanges()...)
}

// markNonPods are the rules that mark all but packets of pods, where these are
// told by more than one thing.
func (p *page) markNonPods() []string {
	var rules []string
	for _, match := range p.pods {
		rules = append(rules, match+"-j RETURN")
	}
	return append(rules, p.markRule())
}

// lines joins the rules of a chain.
func lines(rules []string) string {
	if len(rules) == 0 {
		return ""
	}
	return strings.Join(rules, "\n") + "\n"
}
