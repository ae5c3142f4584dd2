package iptables

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// extension is a match or a target of iptables. It has a half in the programs and one in
// the kernel, and either may be missing.
type extension struct {
	name  string
	table table
	// rule uses the extension and no other one. It is empty for the table itself.
	rule string
	// module is the kernel's half, where that can be a module.
	module string
	// isFor says which service ports need the extension; nil if nothing can be programmed
	// without it.
	isFor func(*proxy.ServicePort) bool
}

// remedy says what is missing, and what to do about that.
func (e *extension) remedy() string {
	if e.rule == "" {
		return fmt.Sprintf("the table %s is missing: load the kernel module %s", e.table, e.module)
	}
	kind := "match"
	if e.name == strings.ToUpper(e.name) {
		kind = "target"
	}
	return fmt.Sprintf("the %s %s is missing: load the kernel module %s, and install all of the package iptables", kind, e.name, e.module)
}

// extensions are all that rules of this package use, for each table the table itself first.
func (r *renderer) extensions() []extension {
	v6 := r.family == v1.IPv6Protocol
	pick := func(ifV4, ifV6 string) string {
		if v6 {
			return ifV6
		}
		return ifV4
	}
	p := &page{renderer: r}
	isSCTP := func(p *proxy.ServicePort) bool { return p.Name.Protocol == v1.ProtocolSCTP }
	isSticky := func(p *proxy.ServicePort) bool { return p.Affinity.Enabled() }
	return []extension{
		{name: "nat", table: nat, module: pick("iptable_nat", "ip6table_nat")},
		{name: "comment", rule: `-m comment --comment "kubernetes probe"`, module: "xt_comment"},
		{name: "conntrack", rule: "-m conntrack --ctstate NEW", module: "xt_conntrack"},
		{name: "addrtype", rule: "-m addrtype --dst-type LOCAL", module: "xt_addrtype"},
		{name: "mark", rule: "-m mark --mark 0x1/0x1", module: "xt_mark"},
		{name: "bpf", rule: "-m bpf --bytecode " + p.hairpin(), module: "xt_bpf"},
		{name: "statistic", rule: "-m statistic --mode random --probability 0.5", module: "xt_statistic"},
		{name: "tcp", rule: "-p tcp -m tcp --dport 1", module: "xt_tcpudp"},
		{name: "udp", rule: "-p udp -m udp --dport 1", module: "xt_tcpudp"},
		{name: "MARK", rule: p.unmarkRule(), module: "xt_mark"},
		{name: "DNAT", rule: "-p tcp -j DNAT --to-destination " + pick("192.0.2.1:1", "[2001:db8::1]:1"), module: "xt_nat"},
		{name: "MASQUERADE", rule: "-j MASQUERADE --random-fully", module: "xt_MASQUERADE"},
		{name: "filter", table: filter, module: pick("iptable_filter", "ip6table_filter")},
		{name: "REJECT", table: filter, rule: p.reject(), module: pick("ipt_REJECT", "ip6t_REJECT")},
		{name: "sctp", rule: "-p sctp -m sctp --dport 1", module: "xt_sctp", isFor: isSCTP},
		{
			name: "recent", rule: "-m recent --set --name " + r.names.chain(chainCanary) + " --mask " + p.wholeMask() + " --rsource",
			module: "xt_recent", isFor: isSticky,
		},
	}
}

// probe is a script that writes rules with extensions, all of one table, into a chain that
// nothing leads to, and one that removes them. Only what is committed meets the kernel.
func (r *renderer) probe(of []extension) *script {
	s := &script{}
	chain := r.names.chain(chainCanary)
	s.write("*", of[0].table.String())
	s.write(":", chain, " - [0:0]")
	for i := range of {
		if of[i].rule != "" {
			s.write("-A ", chain, " ", of[i].rule)
		}
	}
	s.write("COMMIT")
	s.write("*", of[0].table.String())
	s.write("-F ", chain)
	s.write("-X ", chain)
	s.write("COMMIT")
	return s
}

// unserved says that a service port needs an extension that is missing.
func (r *renderer) unserved(port *proxy.ServicePort) error {
	if i := slices.IndexFunc(r.lacks, func(e extension) bool { return e.isFor(port) }); i >= 0 {
		return errors.New(r.lacks[i].remedy())
	}
	return nil
}
