package iptables

import (
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/proxy"
)

// extensions returns all extensions that rules of this package use.
func (r *renderer) extensions() []xtables.Extension {
	destination := "192.0.2.1:1"
	if r.family == v1.IPv6Protocol {
		destination = "[2001:db8::1]:1"
	}
	isSCTP := func(p *proxy.ServicePort) bool { return p.Name.Protocol == v1.ProtocolSCTP }
	isSticky := func(p *proxy.ServicePort) bool { return p.Affinity.Enabled() }
	return []xtables.Extension{
		{Name: "comment", Rule: `-m comment --comment "kubernetes probe"`, Module: "xt_comment"},
		{Name: "conntrack", Rule: "-m conntrack --ctstate NEW", Module: "xt_conntrack"},
		{Name: "addrtype", Rule: "-m addrtype --dst-type LOCAL", Module: "xt_addrtype"},
		{Name: "mark", Rule: "-m mark --mark 0x1/0x1", Module: "xt_mark"},
		{Name: "bpf", Rule: "-m bpf --bytecode " + xtables.HairpinProgram(r.family), Module: "xt_bpf"},
		{Name: "statistic", Rule: "-m statistic --mode random --probability 0.5", Module: "xt_statistic"},
		{Name: "tcp", Rule: "-p tcp -m tcp --dport 1", Module: "xt_tcpudp"},
		{Name: "udp", Rule: "-p udp -m udp --dport 1", Module: "xt_tcpudp"},
		{Name: "MARK", Rule: r.unmarkRule(), Module: "xt_mark"},
		{Name: "DNAT", Rule: "-p tcp -j DNAT --to-destination " + destination, Module: "xt_nat"},
		{Name: "MASQUERADE", Rule: "-j MASQUERADE --random-fully", Module: "xt_MASQUERADE"},
		xtables.RejectExtension(r.family),
		{Name: "sctp", Rule: "-p sctp -m sctp --dport 1", Module: "xt_sctp", IsFor: isSCTP},
		{
			Name: "recent", Rule: "-m recent --set --name " + r.names.Canary() + " --mask " + r.wholeMask() + " --rsource",
			Module: "xt_recent", IsFor: isSticky,
		},
	}
}
