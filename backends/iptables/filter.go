package iptables

import (
	"fmt"

	"github.com/vipkit/vipkit/backends/internal/xtables"
)

// filter adds what table filter has whatever the service ports are.
func (w *staticWriter) filter() {
	const t, isNew = xtables.Filter, "-m conntrack --ctstate NEW "
	for _, open := range [...]string{chainServices, chainExternalServices, chainNodePorts, chainClusterIPs, chainHealthChecks} {
		w.chain(t, open)
	}
	w.chain(t, chainProxyFirewall, w.firewall()...)
	w.chain(t, chainUnserved, w.unserved()...)
	w.chain(t, chainReject, "-p tcp -j REJECT --reject-with tcp-reset", xtables.Reject(w.family))
	w.chain(t, chainForward, w.forward()...)

	w.rule(t, w.nodePorts, w.loopback()+"-j RETURN", false)
	w.hook(t, "INPUT", isNew+w.names.Comment("health check service ports"), chainHealthChecks)
	w.hook(t, "INPUT", isNew+w.names.Comment("load balancer firewall"), chainProxyFirewall)
	w.hook(t, "FORWARD", w.names.Comment("forwarding rules"), chainForward)
	w.hook(t, "FORWARD", isNew+w.names.Comment("unserved addresses"), chainUnserved)
	w.hook(t, "OUTPUT", isNew+w.names.Comment("unserved addresses"), chainUnserved)
}

// isTranslated matches packets of connections that were translated.
const isTranslated = "-m conntrack --ctstate DNAT "

// firewall returns the rules for new connections that were not translated, to addresses and
// ports that the node must not forward or serve.
func (n *nodeRenderer) firewall() []string {
	rules := []string{isTranslated + "-j RETURN", jump(n.external)}
	for _, match := range n.nodePortMatches() {
		rules = append(rules, match+jump(n.nodePorts))
	}
	return append(rules, jump(n.services))
}

// unserved returns the rules for new connections that would leave the node untranslated:
// the rules of firewall, and then rules that reject other ports of ClusterIPs and drop other
// addresses of the service ranges. An address of the node itself is not unserved: a program of
// the node may serve it.
func (n *nodeRenderer) unserved() []string {
	rules := []string{
		isTranslated + "-j RETURN",
		jump(n.names.chain(chainProxyFirewall)),
		"-m addrtype --dst-type LOCAL -j RETURN",
		jump(n.names.chain(chainClusterIPs)),
	}
	return append(rules, n.toServiceRanges("")...)
}

// forward returns the rules for forwarded packets. They accept packets of known connections and
// marked ones, because the policy of FORWARD may be to drop, and no other program knows these.
//
// They drop packets that connection tracking considers invalid. The kernel does not translate
// these: one from an endpoint would reach the client with the endpoint's address, and the
// client's reset would end the connection. There are no such rules if nf_conntrack_tcp_be_liberal
// is set.
func (n *nodeRenderer) forward() []string {
	rules := []string{
		"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		fmt.Sprintf("-m mark --mark %#x/%#x -j ACCEPT", n.mark, n.mark),
	}
	if n.liberal {
		return rules
	}
	const isInvalid = "-m conntrack --ctstate INVALID "
	for _, match := range n.podMatches() {
		rules = append(rules, match+isInvalid+"-j DROP")
	}
	return append(rules, n.toServiceRanges(isInvalid)...)
}

// toServiceRanges returns the rules that drop packets to the ranges of ClusterIPs.
func (n *nodeRenderer) toServiceRanges(match string) (rules []string) {
	for _, cidr := range n.node.ServiceCIDRs {
		if n.isOurs(cidr) {
			rules = append(rules, xtables.MatchRange("-d", cidr)+match+"-j DROP")
		}
	}
	return rules
}
