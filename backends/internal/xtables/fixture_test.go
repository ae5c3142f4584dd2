package xtables

import (
	"fmt"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Beginnings of the names of chains of one service port, without the prefix.
const (
	prefixCluster  = "SVC-"
	prefixLocal    = "SVL-"
	prefixExternal = "EXT-"
	prefixFirewall = "FW-"
)

// newNames returns names with open chains, and chains of service ports.
func newNames() Names {
	return Names{
		Prefix: Prefix("vipkit"),
		Chains: map[Table][]string{
			NAT:    {"SERVICES", "NODEPORTS", "INPUT", "POSTROUTING", "MARK-MASQ", "MARK-NONPODS"},
			Filter: {"SERVICES", "EXTERNAL-SERVICES", "NODEPORTS", "PROXY-FIREWALL", "FORWARD"},
		},
		Open:  []string{"SERVICES", "EXTERNAL-SERVICES", "NODEPORTS"},
		Kinds: []string{prefixCluster, prefixLocal, prefixExternal, prefixFirewall, "SEP-"},
	}
}

// of returns the name of a chain of a service port.
func (n Names) of(kind, port string, number int) string {
	return n.Prefix + kind + Hash(port+strings.Repeat("'", number))
}

// rendering renders rules of all shapes that rules for Services have: in open chains, at the
// front and at the back, shared ones, chains that jump to other chains, and jumps to them.
type rendering struct {
	Names
	node *proxy.Node
	port *proxy.ServicePort
	out  []Object
}

// render implements [backends.Render] for IPv4.
func (n Names) render(env backends.Env, port *proxy.ServicePort, out []Object) []Object {
	r := rendering{n, env.Node, port, nil}
	if port == nil {
		r.static()
		return append(out, r.out...)
	}
	for i := range port.Frontends {
		r.frontend(&port.Frontends[i])
	}
	return append(out, r.out...)
}

const reject = "-j REJECT --reject-with icmp-port-unreachable"

func (r *rendering) static() {
	chain := func(t Table, name string, rules ...string) {
		r.out = append(r.out, Object{Key: Key{Table: t, Chain: r.Prefix + name}, Value: Lines(rules)})
	}
	rule := func(t Table, in, text, to string) {
		isBack := in == r.Prefix+"SERVICES"
		r.out = append(r.out, Object{Key: Key{Table: t, Chain: in, Rule: text + "-j " + to, Back: isBack}})
	}
	for t, all := range r.Chains {
		for _, name := range all {
			switch {
			case strings.HasPrefix(name, "MARK-NONPODS") && len(r.node.LocalTraffic.Sources) < 2:
			case r.IsOpen(r.Prefix + name):
				chain(t, name)
			default:
				chain(t, name, append(r.pods("-j RETURN"), "-m conntrack --ctstate DNAT -j RETURN", "-j MARK --set-xmark 0x4000/0x4000")...)
			}
		}
	}
	at := ""
	for _, p := range r.node.NodePorts.Prefixes {
		at = "-d " + p.String() + " "
	}
	rule(NAT, r.Prefix+"SERVICES", at+`-m addrtype --dst-type LOCAL -m comment --comment "kubernetes service nodeports" `, r.Prefix+"NODEPORTS")
	for t, hooks := range map[Table][]string{NAT: {"PREROUTING", "OUTPUT"}, Filter: {"INPUT", "FORWARD", "OUTPUT"}} {
		rule(t, r.Prefix+"NODEPORTS", "-d 127.0.0.0/8 ", "RETURN")
		for _, hook := range hooks {
			rule(t, hook, `-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" `, r.Prefix+"SERVICES")
		}
	}
	rule(NAT, "INPUT", "", r.Prefix+"INPUT")
}

// pods returns a rule with an action for each range of pods.
func (r *rendering) pods(action string) (rules []string) {
	for _, p := range r.node.LocalTraffic.Sources {
		if p.Addr().Is4() {
			rules = append(rules, "-s "+p.String()+" "+action)
		}
	}
	return rules
}

func (r *rendering) frontend(f *proxy.Frontend) {
	for _, t := range []Table{NAT, Filter} {
		if t == Filter && f.FromInside.Action == proxy.Forward && f.FromOutside.Action == proxy.Forward {
			continue
		}
		rules := append(r.pods(r.action(t, f.FromInside)), r.action(t, f.FromOutside))
		if f.Restricted {
			to := r.chain(t, prefixExternal, rules)
			rules = nil
			for _, s := range f.AllowedSources {
				rules = append(rules, "-s "+s.String()+" -j "+to)
			}
			rules = append(rules, map[Table]string{NAT: "-j ACCEPT", Filter: "-j DROP"}[t])
		}
		r.dispatch(t, f, rules)
	}
	if f.Kind == proxy.ClusterIP {
		r.out = append(r.out, Object{Key: Key{Table: Filter, Back: true, IsShared: true, Chain: r.Prefix + "SERVICES", Rule: "-d " + f.Addr.Addr().String() + "/32 " + reject}})
	}
}

// dispatch adds the rule that matches a frontend, with a chain if there are several actions.
func (r *rendering) dispatch(t Table, f *proxy.Frontend, rules []string) {
	action := rules[0]
	if len(rules) > 1 {
		action = "-j " + r.chain(t, prefixFirewall, rules)
	}
	k := Key{Table: t, Chain: r.Prefix + "SERVICES"}
	match := "-d " + f.Addr.Addr().String() + "/32 "
	switch {
	case f.Kind == proxy.NodePort:
		k.Back, k.Chain, match = true, r.Prefix+"NODEPORTS", ""
	case t == Filter && f.Kind != proxy.ClusterIP:
		k.Chain = r.Prefix + "EXTERNAL-SERVICES"
	}
	k.Rule = fmt.Sprintf(`%s-p tcp -m comment --comment "%s kind %d" -m tcp --dport %d %s`, match, r.port.Name.NamespacedName, f.Kind, f.Addr.Port(), action)
	r.out = append(r.out, Object{Key: k})
}

// action returns the action of a route.
func (r *rendering) action(t Table, to proxy.TrafficRoute) string {
	switch {
	case t == Filter && to.Action == proxy.Reject:
		return reject
	case t == Filter && to.Action == proxy.Drop:
		return "-j DROP"
	case t == Filter:
		return "-j RETURN"
	case to.Action != proxy.Forward:
		return "-j ACCEPT"
	}
	rules := []string{fmt.Sprintf("-p tcp -m tcp --dport %d -j %sMARK-MASQ", r.port.Frontends[0].Addr.Port(), r.Prefix)}
	for i, e := range r.port.Pool(to.Pool) {
		rules = append(rules, fmt.Sprintf("-p tcp -m statistic --mode random --probability 0.%d -j DNAT --to-destination %s", i, e.Addr))
	}
	return "-j " + r.chain(t, [...]string{prefixCluster, prefixLocal}[to.Pool&1], rules)
}

// chain returns the name of a chain with some rules, and adds the chain unless it exists.
func (r *rendering) chain(t Table, kind string, rules []string) string {
	for number := 0; ; number++ {
		o := Object{Key: Key{Table: t, Chain: r.of(kind, r.port.Name.String(), number)}, Value: Lines(rules)}
		var exists bool
		for _, have := range r.out {
			if have == o {
				return o.Key.Chain
			}
			exists = exists || have.Key == o.Key
		}
		if !exists {
			r.out = append(r.out, o)
			return o.Key.Chain
		}
	}
}
