package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/proxy"
)

// portWriter appends the objects of one service port.
type portWriter struct {
	nodeRenderer
	port  *proxy.ServicePort
	out   []xtables.Object
	proto string
	// text is the name of the port in comments.
	text string
	// start is the index in out of the first object of this port.
	start int
	// headers are the rules before the endpoints of a pool.
	headers [2][]string
	// poolChains are the names of the chains of the pools that are used.
	poolChains [2]string
}

func (w *portWriter) write() {
	for i := range w.port.Frontends {
		w.frontend(&w.port.Frontends[i])
	}
	for pool, name := range w.poolChains {
		if name != "" {
			w.out = append(w.out, w.pool(proxy.Pool(pool)))
		}
	}
	if w.port.HealthCheckNodePort != 0 {
		w.healthCheck()
	}
}

// healthCheck adds the rule that accepts packets to the port at which load balancers ask for
// the health of the Service. All its service ports have the same rule.
func (w *portWriter) healthCheck() {
	var scratch [longRule]byte
	name := w.port.Name
	name.Port = ""
	b := appendPort(scratch[:0], "tcp", w.port.HealthCheckNodePort, safe(portText(name))+" health check node port")
	k := xtables.Key{Table: xtables.Filter, IsShared: true, Chain: w.names.chain(chainHealthChecks), Rule: string(append(b, " -j ACCEPT"...))}
	w.add(k, "")
}

// routes are the routes of traffic from pods, from the node itself, and from outside.
type routes struct{ pod, node, outside proxy.TrafficRoute }

func (w *portWriter) routes(f *proxy.Frontend) (r routes) {
	r.pod, r.node, r.outside = f.Routes()
	if !w.node.LocalTraffic.Detects(w.family) {
		r.pod = r.node
	}
	return r
}

func (r routes) all(is func(proxy.TrafficRoute) bool) bool {
	return is(r.pod) && is(r.node) && is(r.outside)
}

func forwards(r proxy.TrafficRoute) bool    { return r.Action == proxy.Forward }
func refuses(r proxy.TrafficRoute) bool     { return r.Action != proxy.Forward }
func rejects(r proxy.TrafficRoute) bool     { return r.Action == proxy.Reject }
func drops(r proxy.TrafficRoute) bool       { return r.Action == proxy.Drop }
func masquerades(r proxy.TrafficRoute) bool { return r.Masquerade == proxy.MasqueradeAlways }

// frontend adds the objects of one frontend: in table nat those that translate packets to
// endpoints, in table filter those that refuse packets.
func (w *portWriter) frontend(f *proxy.Frontend) {
	r := w.routes(f)
	var actions []string
	switch {
	case r.all(refuses):
		actions = []string{"-j ACCEPT"} // so that no other rule translates the packet
	case isPlain(f, r):
		actions = w.plain(f, r)
	default:
		actions = w.bySource(xtables.NAT, r)
	}
	w.dispatch(xtables.NAT, f, w.restrict(xtables.NAT, f, actions), "")

	switch {
	case r.all(forwards) && !f.Restricted:
	case r.all(func(r proxy.TrafficRoute) bool { return forwards(r) || drops(r) }):
		w.dispatch(xtables.Filter, f, []string{"-j DROP"}, reason(f, r))
	default:
		w.dispatch(xtables.Filter, f, w.restrict(xtables.Filter, f, w.bySource(xtables.Filter, r)), reason(f, r))
	}
	if f.Kind == proxy.ClusterIP {
		var scratch [longRule]byte
		b := append(appendSingle(append(scratch[:0], "-d "...), f.Addr.Addr()), ' ')
		k := xtables.Key{Table: xtables.Filter, Back: true, IsShared: true, Chain: w.names.chain(chainClusterIPs)}
		k.Rule = string(append(b, jump(w.reject)...))
		w.add(k, "")
	}
}

// reason returns the comment of a rule that refuses packets.
func reason(f *proxy.Frontend, r routes) string {
	switch {
	case f.Restricted:
		return " has source ranges"
	case r.all(rejects):
		return " has no endpoints"
	}
	return " has no local endpoints"
}

func (w *portWriter) add(k xtables.Key, v string) {
	w.out = append(w.out, xtables.Object{Key: k, Value: v})
}

// dispatch adds the rule that matches a frontend. A rule has one action, so several actions
// get a chain.
func (w *portWriter) dispatch(t xtables.Table, f *proxy.Frontend, actions []string, reason string) {
	action := actions[0]
	if len(actions) > 1 {
		action = jump(w.chain(t, prefixExternal, actions))
	}
	k := xtables.Key{Table: t, Chain: w.services}
	var scratch [longRule]byte
	b := scratch[:0]
	switch {
	case f.Kind == proxy.NodePort:
		k.Back, k.Chain = true, w.nodePorts
		b = appendPort(b, w.proto, f.Addr.Port(), w.text+reason)
	case reason == "":
		b = appendTo(b, w.proto, f.Addr, w.text+[...]string{" cluster IP", " external IP", " loadbalancer IP", ""}[f.Kind&3])
	default:
		b = appendTo(b, w.proto, f.Addr, w.text+reason)
	}
	if t == xtables.Filter && f.Kind != proxy.ClusterIP && f.Kind != proxy.NodePort {
		k.Chain = w.external
	}
	k.Rule = string(append(append(b, ' '), action...))
	w.add(k, "")
}

// isPlain reports whether all packets for a ClusterIP use one pool, so that the chain of the
// pool can have the rules that mark them.
func isPlain(f *proxy.Frontend, r routes) bool {
	return f.Kind == proxy.ClusterIP && forwards(r.pod) && r.node == r.outside
}

// plain returns the action for a plain ClusterIP, and adds the rules that mark its packets to
// the chain of the pool.
func (w *portWriter) plain(f *proxy.Frontend, r routes) []string {
	pool := r.pod.Pool
	if masquerades(r.outside) {
		w.headers[pool] = append(w.headers[pool], w.markPlain(f, masquerades(r.pod))...)
	}
	return []string{w.toPool(pool)}
}

// markPlain returns the rule that marks packets for a plain ClusterIP, with or without those
// of pods; none if all packets are of pods.
func (w *portWriter) markPlain(f *proxy.Frontend, podsToo bool) []string {
	var scratch [longRule]byte
	at, mark := string(append(appendTo(scratch[:0], w.proto, f.Addr, ""), ' ')), jump(w.markMasq)
	if podsToo {
		return []string{at + mark}
	}
	switch pods := w.podMatches(); {
	case pods[0] == "":
		return nil
	case len(pods) == 1:
		return []string{negate(pods[0], at) + mark}
	}
	return []string{at + jump(w.names.chain(chainMarkNonPods))}
}

// negate adds the opposite of a match to another match, before or after its destination, in
// the order in which iptables prints them.
func negate(match, at string) string {
	if strings.HasPrefix(match, "-i") {
		destination, rest, _ := strings.Cut(at, " -p ")
		return destination + " ! " + match + "-p " + rest
	}
	return "! " + match + at
}

func (w *portWriter) toPool(pool proxy.Pool) string {
	name := &w.poolChains[pool&1]
	if *name == "" {
		*name = w.names.of(poolPrefix(pool), w.port.Name, 0)
	}
	return jump(*name)
}

func poolPrefix(p proxy.Pool) string {
	if p == proxy.PoolLocal {
		return prefixLocal
	}
	return prefixCluster
}

// actions returns the rules, without a match, for one route.
func (w *portWriter) actions(t xtables.Table, r proxy.TrafficRoute) []string {
	switch {
	case t == xtables.Filter && r.Action == proxy.Reject:
		return []string{jump(w.reject)}
	case t == xtables.Filter && r.Action == proxy.Drop:
		return []string{"-j DROP"}
	case t == xtables.Filter:
		return []string{"-j RETURN"}
	case r.Action != proxy.Forward:
		return []string{"-j ACCEPT"}
	case masquerades(r):
		return []string{jump(w.markMasq), w.toPool(r.Pool)}
	}
	return []string{w.toPool(r.Pool)}
}

// bySource returns the rules for the routes of all sources.
func (w *portWriter) bySource(t xtables.Table, r routes) []string {
	var rules []string
	under := func(match string, r proxy.TrafficRoute) {
		for _, a := range w.actions(t, r) {
			rules = append(rules, match+a)
		}
	}
	if t == xtables.Filter { // translated packets do not traverse these rules
		r = r.withoutForwards()
	}
	if r.pod != r.node || r.node != r.outside {
		for _, match := range w.podMatches() {
			under(match, r.pod)
		}
	}
	if r.node != r.outside {
		under("-m addrtype --src-type LOCAL ", r.node)
	}
	under("", r.outside)
	return rules
}

// withoutForwards replaces routes to endpoints by ones that refuse, which saves rules: no
// packet of such a route traverses the rules in table filter.
func (r routes) withoutForwards() routes {
	for _, refusal := range [...]proxy.TrafficRoute{r.outside, r.node, r.pod} {
		if refuses(refusal) {
			for _, at := range [...]*proxy.TrafficRoute{&r.pod, &r.node, &r.outside} {
				if forwards(*at) {
					*at = refusal
				}
			}
			return r
		}
	}
	return r
}

// restrict applies actions to packets from allowed sources, and drops all others.
func (w *portWriter) restrict(t xtables.Table, f *proxy.Frontend, actions []string) []string {
	if !f.Restricted || actions[0] == "-j ACCEPT" {
		return actions
	}
	last := "-j DROP"
	if t == xtables.NAT {
		last = "-j ACCEPT"
	}
	var rules []string
	if len(f.AllowedSources) > 0 {
		action := actions[0]
		if len(actions) > 1 {
			action = jump(w.chain(t, prefixExternal, actions))
		}
		for _, s := range f.AllowedSources {
			rules = append(rules, xtables.MatchRange("-s", s)+action)
		}
	}
	return []string{jump(w.chain(t, prefixFirewall, append(rules, last)))}
}

// chain returns the name of a chain with some rules. It adds the chain unless this service
// port has one with the same rules.
func (w *portWriter) chain(t xtables.Table, kind string, rules []string) string {
	content := xtables.Lines(rules)
	for number := 0; ; number++ {
		name := w.names.of(kind, w.port.Name, number)
		switch have := w.find(t, name); {
		case have == nil:
			w.add(xtables.Key{Table: t, Chain: name}, content)
			return name
		case have.Value == content:
			return name
		}
	}
}

func (w *portWriter) find(t xtables.Table, name string) *xtables.Object {
	for i := w.start; i < len(w.out); i++ {
		if k := &w.out[i].Key; k.Table == t && k.Rule == "" && k.Chain == name {
			return &w.out[i]
		}
	}
	return nil
}

// pool returns the chain that picks one of the endpoints of a pool.
func (w *portWriter) pool(pool proxy.Pool) xtables.Object {
	name, list := w.poolChains[pool], w.port.Pool(pool)
	sticks := w.port.Affinity.Enabled()
	var scratch [4096]byte
	b := scratch[:0]
	for _, h := range w.headers[pool] {
		b = append(append(b, h...), '\n')
	}
	if sticks {
		for _, e := range list {
			b = append(append(b, "-p "...), w.proto...)
			b = fmt.Appendf(b, " -m recent --update --seconds %d --reap", int64(math.Ceil(w.port.Affinity.Timeout.Seconds())))
			b = w.translate(w.client(b, name, e.Addr), e.Addr)
		}
	}
	for i, e := range list {
		b = append(append(b, "-p "...), w.proto...)
		b = appendOneOf(append(b, ' '), len(list)-i)
		if sticks {
			b = w.client(append(b, "-m recent --set"...), name, e.Addr)
		}
		b = w.translate(b, e.Addr)
	}
	return xtables.Object{Key: xtables.Key{Table: xtables.NAT, Chain: name}, Value: string(b)}
}

// client writes the options of the match recent for the clients of an endpoint.
func (w *portWriter) client(b []byte, chain string, at netip.AddrPort) []byte {
	return fmt.Appendf(b, " --name %s-%s --mask %s --rsource ", chain, at, w.wholeMask())
}

func (w *portWriter) translate(b []byte, to netip.AddrPort) []byte {
	b = append(b, "-j DNAT --to-destination "...)
	return append(to.AppendTo(b), '\n')
}
