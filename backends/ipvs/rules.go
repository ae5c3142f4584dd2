package ipvs

import (
	"fmt"
	"hash/fnv"
	"strings"
	"unique"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Rules are written exactly as iptables-save prints them, so that they can be compared as
// text. Their number does not depend on Services: what depends on them is in the sets.

// The chains, without the prefix of the identity. Each is used in several tables.
const (
	chainPrerouting  = "IPVS-PREROUTING"
	chainInput       = "IPVS-INPUT"
	chainForward     = "IPVS-FORWARD"
	chainOutput      = "IPVS-OUTPUT"
	chainPostrouting = "IPVS-POSTROUTING"
	chainPod         = "IPVS-POD"
	chainNode        = "IPVS-NODE"
	chainOutside     = "IPVS-OUTSIDE"
	chainAddresses   = "IPVS-ADDRESSES"
	chainReject      = "IPVS-REJECT"
)

// Marks of packets for virtual servers of marked packets are in this range. IPVS compares all
// bits of the mark.
const (
	markBase = 0x76500000
	markMask = 0xffff0000
)

// The virtual servers of an identity have its tag in these bits of their flags, of which the
// kernel uses only the lowest ones. Virtual servers that have it are the backend's. Of a hundred identities on a node,
// two have the same tag with a probability of 0.06 %.
const tagMask = 0xffffff00

// identify returns the tag of an identity, and where in the range its marks begin, so that those
// of several identities in one namespace seldom meet.
func identify(prefix string) (tag, first uint32) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(prefix)) // writing to a hash never fails
	return 1<<31 | h.Sum32()&tagMask, h.Sum32() % markCount
}

const markCount = ^uint32(markMask) + 1

// rulesOf returns the constant rules of a family.
func (r *renderer) rulesOf(f v1.IPFamily, node *proxy.Node) []xtables.Object {
	w := ruleWriter{family: f, prefix: r.prefix, mark: r.options.Identity.Mark, node: node}
	return w.write()
}

// rulesText returns all constant rules as text.
func (r *renderer) rulesText(node *proxy.Node) unique.Handle[string] {
	var text strings.Builder
	for _, f := range r.options.Families {
		for _, o := range r.rulesOf(f, node) {
			fmt.Fprintln(&text, f, o.Key, o.Value)
		}
	}
	return unique.Make(text.String())
}

// ruleset returns what the constant rules need.
func (r *renderer) ruleset() xtables.Config {
	c := xtables.Config{
		Options: xtables.Options{Flavour: xtables.Flavour(r.options.Flavour), LockWait: r.options.LockWait},
		Names:   xtables.Names{Prefix: r.prefix, Chains: chains(), Uncommented: true},
	}
	for _, f := range r.options.Families {
		w := ruleWriter{family: f, prefix: r.prefix}
		c.Families = append(c.Families, xtables.Family{
			Family: f, Extensions: w.extensions(),
			Render: func(env backends.Env, port *proxy.ServicePort, out []xtables.Object) []xtables.Object {
				if port == nil {
					out = append(out, r.rulesOf(f, env.Node)...)
				}
				return out
			},
		})
	}
	return c
}

// ruleWriter writes the rules of one family for a node.
type ruleWriter struct {
	family v1.IPFamily
	// prefix begins the names of sets and chains, mark the bit of the connection mark.
	prefix string
	mark   uint32
	node   *proxy.Node
	out    []xtables.Object
}

// chains returns the chains of all tables.
func chains() map[xtables.Table][]string {
	return map[xtables.Table][]string{
		xtables.Mangle: {chainInput, chainOutput, chainPod, chainPostrouting},
		xtables.NAT:    {chainPrerouting, chainOutput, chainPod, chainPostrouting},
		xtables.Filter: {chainInput, chainPod, chainNode, chainOutside, chainAddresses, chainReject, chainForward, chainOutput},
	}
}

func (w *ruleWriter) chain(t xtables.Table, name string, rules ...string) {
	w.out = append(w.out, xtables.Object{Key: xtables.Key{Table: t, Chain: w.prefix + name}, Value: xtables.Lines(rules)})
}

// jump adds a rule at the front of one of the kernel's own chains.
func (w *ruleWriter) jump(t xtables.Table, from, match, to string) {
	w.out = append(w.out, xtables.Object{Key: xtables.Key{Table: t, Chain: from, Rule: match + "-j " + w.prefix + to}})
}

func (w *ruleWriter) gotoChain(match, chain string) string { return match + "-g " + w.prefix + chain }

// set returns the name of a set.
func (w *ruleWriter) set(s setID) string { return setName(w.prefix, w.family, s) }

// in matches packets to the frontends of a set.
func (w *ruleWriter) in(s setID) string {
	return "-m set --match-set " + w.set(s) + " dst,dst "
}

// isNew matches first packets of connections.
const isNew = "-m conntrack --ctstate NEW "

// write writes all rules. Packets to a frontend take this way: the set inside marks packets
// from inside in mangle; nat marks the connections to masquerade; filter drops and rejects,
// which IPVS must not get; IPVS translates; nat masquerades. Packets of the node's processes reach IPVS
// before filter, so mangle drops some of them.
func (w *ruleWriter) write() []xtables.Object {
	w.mangle()
	w.nat()
	w.filter()
	return w.out
}

func (w *ruleWriter) mangle() {
	mark := "-j SET --map-set " + w.set(setInside) + " dst,dst --map-mark"
	var input []string
	sources, interfaces := xtables.MatchPods(w.family, w.node.LocalTraffic)
	for _, match := range append(sources, interfaces...) {
		input = append(input, match+mark)
	}
	w.chain(xtables.Mangle, chainInput, input...)
	output := []string{
		translated + "-j RETURN", // it is on its way to an endpoint
		mark,
		w.firewall(),
	}
	for _, match := range sources {
		output = append(output, w.gotoChain(match, chainPod))
	}
	output = append(output, w.in(setDropNode)+isNew+"-j DROP")
	w.chain(xtables.Mangle, chainOutput, output...)
	w.chain(xtables.Mangle, chainPod, w.in(setDropPods)+isNew+"-j DROP")
	w.chain(xtables.Mangle, chainPostrouting,
		fmt.Sprintf("%s-m mark --mark %#x/%#x -j MARK --set-xmark 0x0/0xffffffff", translated, markBase, markMask))
	w.jump(xtables.Mangle, "INPUT", "", chainInput)
	w.jump(xtables.Mangle, "OUTPUT", "", chainOutput)
	w.jump(xtables.Mangle, "POSTROUTING", "", chainPostrouting)
}

// translated matches packets that IPVS has translated.
const translated = "-m ipvs --ipvs "

// firewall drops packets of sources that are not allowed.
func (w *ruleWriter) firewall() string {
	return w.in(setFirewall) + "-m set ! --match-set " + w.set(setSources) + " dst,dst,src -j DROP"
}

func (w *ruleWriter) nat() {
	bit := fmt.Sprintf("%#x/%#x", w.mark, w.mark)
	mark := "-j CONNMARK --set-xmark " + bit
	sources, interfaces := xtables.MatchPods(w.family, w.node.LocalTraffic)
	var prerouting, output []string
	for _, match := range append(sources, interfaces...) {
		prerouting = append(prerouting, w.gotoChain(match, chainPod))
	}
	for _, match := range sources {
		output = append(output, w.gotoChain(match, chainPod))
	}
	w.chain(xtables.NAT, chainPod, w.in(setMasqueradePods)+mark)
	w.chain(xtables.NAT, chainPrerouting, append(prerouting, w.in(setMasqueradeOutside)+mark)...)
	w.chain(xtables.NAT, chainOutput, append(output, w.in(setMasqueradeNode)+mark)...)
	const masquerade = "-j MASQUERADE --random-fully"
	w.chain(xtables.NAT, chainPostrouting,
		"-m ipvs ! --ipvs -j RETURN",
		"-m connmark --mark "+bit+" "+masquerade,
		// The node's own connections to an address of a Service have that address as source.
		"-m set --match-set "+w.set(setAddresses)+" src "+masquerade,
		"-m bpf --bytecode "+xtables.HairpinProgram(w.family)+" "+masquerade)
	w.jump(xtables.NAT, "PREROUTING", "", chainPrerouting)
	w.jump(xtables.NAT, "OUTPUT", "", chainOutput)
	w.jump(xtables.NAT, "POSTROUTING", "", chainPostrouting)
}

func (w *ruleWriter) filter() {
	// The node's firewall may drop what nobody accepts.
	input := []string{w.firewall(), w.in(setHealthChecks) + "-j ACCEPT"}
	sources, interfaces := xtables.MatchPods(w.family, w.node.LocalTraffic)
	for _, match := range sources {
		input = append(input, w.gotoChain(match, chainPod))
	}
	input = append(input, w.gotoChain("-i lo ", chainNode))
	for _, match := range interfaces {
		input = append(input, w.gotoChain(match, chainPod))
	}
	w.chain(xtables.Filter, chainInput, append(input, w.gotoChain("", chainOutside))...)
	w.chain(xtables.Filter, chainPod, w.class(classPods())...)
	w.chain(xtables.Filter, chainNode, w.class(classNode())...)
	w.chain(xtables.Filter, chainOutside, w.class(classOutside())...)
	var others []string
	for _, s := range frontendSets() {
		others = append(others, w.in(s)+"-j RETURN")
	}
	w.chain(xtables.Filter, chainAddresses, append(others, w.gotoChain("-m set --match-set "+w.set(setAddresses)+" dst ", chainReject))...)
	// The kernel limits ICMP errors to one client, but not resets.
	w.chain(xtables.Filter, chainReject, "-p tcp -j REJECT --reject-with tcp-reset", xtables.Reject(w.family))
	w.jump(xtables.Filter, "INPUT", isNew, chainInput)
	// Without an address on this node, a packet would go where a route sends it. One to an address that
	// an interface has goes to INPUT, by lo: of addresses of the device, INPUT rejects ports without a
	// Service, and of others every port stays with the node.
	// The policy of FORWARD may be to drop. Only replies of endpoints pass there: what IPVS translates
	// passes OUTPUT.
	forward := []string{"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"}
	var output []string
	for _, cidr := range w.node.ServiceCIDRs {
		if ipaddr.FamilyOf(cidr.Addr()) == w.family {
			forward = append(forward, xtables.MatchRange("-d", cidr)+isNew+"-j DROP")
			output = append(output, xtables.MatchRange("-d", cidr)+"! -o lo -j DROP")
		}
	}
	w.chain(xtables.Filter, chainForward, forward...)
	w.chain(xtables.Filter, chainOutput, output...)
	w.jump(xtables.Filter, "FORWARD", "", chainForward)
	w.jump(xtables.Filter, "OUTPUT", isNew, chainOutput)
}

// class returns the rules for the connections of a class. Ports of addresses of Services that
// no Service has are rejected.
func (w *ruleWriter) class(c class) []string {
	return []string{
		w.in(c.drop) + "-j DROP",
		w.gotoChain(w.in(c.reject), chainReject),
		"-g " + w.prefix + chainAddresses,
	}
}

// extensions are the matches and targets that the rules need.
func (w *ruleWriter) extensions() []xtables.Extension {
	pair := w.set(setClusterIP) + " dst,dst "
	return []xtables.Extension{
		{Name: "conntrack", Table: xtables.Filter, Rule: isNew, Module: "xt_conntrack"},
		{Name: "set", Table: xtables.Filter, Rule: "-m set --match-set " + pair, Module: "xt_set"},
		xtables.RejectExtension(w.family),
		{Name: "SET", Table: xtables.Mangle, Rule: "-j SET --map-set " + w.set(setInside) + " dst,dst --map-mark", Module: "xt_set"},
		{Name: "ipvs", Table: xtables.Mangle, Rule: translated, Module: "xt_ipvs"},
		{Name: "mark", Table: xtables.Mangle, Rule: "-m mark --mark 0x1/0x1", Module: "xt_mark"},
		{Name: "MARK", Table: xtables.Mangle, Rule: "-j MARK --set-xmark 0x0/0xffffffff", Module: "xt_mark"},
		{Name: "connmark", Table: xtables.NAT, Rule: "-m connmark --mark 0x1/0x1", Module: "xt_connmark"},
		{Name: "CONNMARK", Table: xtables.NAT, Rule: "-j CONNMARK --set-xmark 0x1/0x1", Module: "xt_connmark"},
		{Name: "bpf", Table: xtables.NAT, Rule: "-m bpf --bytecode " + xtables.HairpinProgram(w.family), Module: "xt_bpf"},
		{Name: "MASQUERADE", Table: xtables.NAT, Rule: "-j MASQUERADE --random-fully", Module: "xt_MASQUERADE"},
	}
}
