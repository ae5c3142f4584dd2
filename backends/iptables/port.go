package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/vipkit/vipkit/proxy"
)

// portWriter appends the objects of one service port.
type portWriter struct {
	page  *page
	port  *proxy.ServicePort
	out   []object
	proto string
	// text names the port in comments.
	text string
	// start is where the chains of this port begin in out.
	start int
	// headers are the rules that come before the endpoints of a pool.
	headers [2][]string
	// pools are the names of the chains of the pools that are used.
	pools [2]string
	buf   []byte
}

func (w *portWriter) write() {
	w.start = len(w.out)
	for i := range w.port.Frontends {
		w.frontend(&w.port.Frontends[i])
	}
	for pool, name := range w.pools {
		if name != "" {
			w.out = append(w.out, w.pool(proxy.Pool(pool)))
		}
	}
}

// path is what becomes of the packets of one kind of source.
type path struct {
	action     proxy.Action
	pool       proxy.Pool
	masquerade bool
}

// paths are those of pods, the node itself, and all others.
type paths struct{ pod, node, outside path }

func (w *portWriter) paths(f *proxy.Frontend) paths {
	to := func(r proxy.TrafficRoute, pod bool) path {
		if r.Action != proxy.Forward {
			return path{action: r.Action}
		}
		return path{proxy.Forward, r.Pool, r.Masquerade == proxy.MasqueradeAlways || r.Masquerade == proxy.MasqueradeNonPods && !pod}
	}
	p := paths{pod: to(f.FromInside, true), node: to(f.FromInside, false), outside: to(f.FromOutside, false)}
	if !w.page.detects {
		p.pod = p.node
	}
	return p
}

func (p paths) all(is func(path) bool) bool { return is(p.pod) && is(p.node) && is(p.outside) }

// one reports whether the source decides nothing.
func (p paths) one() bool { return p.pod == p.node && p.node == p.outside }

func forwards(p path) bool { return p.action == proxy.Forward }
func stays(p path) bool    { return p.action != proxy.Forward }
func drops(p path) bool    { return p.action == proxy.Drop }

// frontend adds what one frontend needs: in table nat what leads to endpoints,
// in table filter what becomes of packets that are led nowhere.
func (w *portWriter) frontend(f *proxy.Frontend) {
	p := w.paths(f)
	var actions []string
	switch {
	case p.all(stays):
		actions = []string{"-j ACCEPT"} // nothing else shall translate it
	case w.isPlain(f, p):
		actions = w.plain(f, p)
	default:
		actions = w.bySource(nat, p)
	}
	w.dispatch(nat, f, w.restrict(nat, f, actions), "")

	switch {
	case p.all(forwards) && !f.Restricted:
	case p.all(func(p path) bool { return forwards(p) || drops(p) }):
		w.dispatch(filter, f, []string{"-j DROP"}, w.why(f, p))
	default:
		w.dispatch(filter, f, w.restrict(filter, f, w.bySource(filter, p)), w.why(f, p))
	}
	if f.Kind == proxy.ClusterIP {
		w.buf = append(appendSingle(append(w.buf[:0], "-d "...), f.Addr.Addr()), ' ')
		w.buf = append(w.buf, w.page.reject()...)
		w.add(key{table: filter, back: true, shared: true, chain: w.page.chains.services, rule: string(w.buf)}, "")
	}
}

// why says what is behind a rule that refuses packets.
func (w *portWriter) why(f *proxy.Frontend, p paths) string {
	switch {
	case f.Restricted:
		return " has source ranges"
	case p.all(func(p path) bool { return p.action == proxy.Reject }):
		return " has no endpoints"
	}
	return " has no local endpoints"
}

func (w *portWriter) add(k key, v string) { w.out = append(w.out, object{Key: k, Value: v}) }

// dispatch adds the rule that finds a frontend. A rule does one thing, so that
// several actions are put into a chain.
func (w *portWriter) dispatch(t table, f *proxy.Frontend, actions []string, why string) {
	action := actions[0]
	if len(actions) > 1 {
		action = jump(w.chain(t, prefixExternal, actions))
	}
	k := key{table: t, chain: w.page.chains.services}
	switch {
	case f.Kind == proxy.NodePort:
		k.back, k.chain = true, w.page.chains.nodePorts
		w.buf = appendPort(w.buf[:0], w.proto, f.Addr.Port(), w.text+why)
	case why == "":
		w.buf = appendTo(w.buf[:0], w.proto, f.Addr, w.text+[...]string{" cluster IP", " external IP", " loadbalancer IP", ""}[f.Kind&3])
	default:
		w.buf = appendTo(w.buf[:0], w.proto, f.Addr, w.text+why)
	}
	if t == filter && f.Kind != proxy.ClusterIP && f.Kind != proxy.NodePort {
		k.chain = w.page.chains.external
	}
	w.buf = append(append(w.buf, ' '), action...)
	k.rule = string(w.buf)
	w.add(k, "")
}

// isPlain reports whether packets for a ClusterIP go to one pool, with no
// question but which to mark: the chain of the pool answers it.
func (w *portWriter) isPlain(f *proxy.Frontend, p paths) bool {
	return f.Kind == proxy.ClusterIP && forwards(p.pod) && p.node == p.outside
}

// plain gives the way to the endpoints of a ClusterIP.
func (w *portWriter) plain(f *proxy.Frontend, p paths) []string {
	w.buf = append(appendTo(w.buf[:0], w.proto, f.Addr, ""), ' ')
	at, mark := string(w.buf), w.page.chains.toMark
	pool := p.pod.pool
	switch {
	case !p.outside.masquerade, !p.pod.masquerade && w.page.pods[0] == "": // all are pods
	case p.pod.masquerade:
		w.headers[pool] = append(w.headers[pool], at+mark)
	case len(w.page.pods) == 1:
		w.headers[pool] = append(w.headers[pool], not(w.page.pods[0], at)+mark)
	default:
		w.headers[pool] = append(w.headers[pool], at+jump(w.page.names.chain(chainMarkNonPods)))
	}
	return []string{w.toPool(pool)}
}

// not puts the opposite of a match into its place before or behind the
// destination of another one.
func not(match, at string) string {
	if strings.HasPrefix(match, "-i") {
		destination, rest, _ := strings.Cut(at, " -p ")
		return destination + " ! " + match + "-p " + rest
	}
	return "! " + match + at
}

func (w *portWriter) toPool(pool proxy.Pool) string {
	name := &w.pools[pool&1]
	if *name == "" {
		*name = w.page.names.of(poolPrefix(pool), w.port.Name, 0)
	}
	return jump(*name)
}

func poolPrefix(p proxy.Pool) string {
	if p == proxy.PoolLocal {
		return prefixLocal
	}
	return prefixCluster
}

// actions are the rules, without a match, for one path.
func (w *portWriter) actions(t table, p path) []string {
	switch {
	case t == filter && p.action == proxy.Reject:
		return []string{w.page.reject()}
	case t == filter && p.action == proxy.Drop:
		return []string{"-j DROP"}
	case t == filter:
		return []string{"-j RETURN"}
	case p.action != proxy.Forward:
		return []string{"-j ACCEPT"}
	case p.masquerade:
		return []string{w.page.chains.toMark, w.toPool(p.pool)}
	}
	return []string{w.toPool(p.pool)}
}

// bySource are the rules that lead each kind of source its way.
func (w *portWriter) bySource(t table, p paths) []string {
	var rules []string
	under := func(match string, p path) {
		for _, a := range w.actions(t, p) {
			rules = append(rules, match+a)
		}
	}
	if t == filter { // of what is translated, nothing comes by here
		p = p.withoutForwards()
	}
	if !p.one() {
		for _, match := range w.page.pods {
			under(match, p.pod)
		}
	}
	if p.node != p.outside {
		under("-m addrtype --src-type LOCAL ", p.node)
	}
	under("", p.outside)
	return rules
}

// withoutForwards fills in for paths that lead to endpoints those that do not,
// as it does not matter there.
func (p paths) withoutForwards() paths {
	for _, q := range [...]path{p.outside, p.node, p.pod} {
		if stays(q) {
			for _, at := range [...]*path{&p.pod, &p.node, &p.outside} {
				if forwards(*at) {
					*at = q
				}
			}
			return p
		}
	}
	return p
}

// restrict leads only packets from allowed sources on.
func (w *portWriter) restrict(t table, f *proxy.Frontend, actions []string) []string {
	if !f.Restricted || actions[0] == "-j ACCEPT" {
		return actions
	}
	last := "-j DROP"
	if t == nat {
		last = "-j ACCEPT"
	}
	var rules []string
	if len(f.AllowedSources) > 0 {
		action := actions[0]
		if len(actions) > 1 {
			action = jump(w.chain(t, prefixExternal, actions))
		}
		for _, s := range f.AllowedSources {
			rules = append(rules, matchRange("-s", s)+action)
		}
	}
	return []string{jump(w.chain(t, prefixFirewall, append(rules, last)))}
}

// chain gives the name of a chain with some rules, and adds it unless it is
// there already.
func (w *portWriter) chain(t table, kind string, rules []string) string {
	content := lines(rules)
	for number := 0; ; number++ {
		name := w.page.names.of(kind, w.port.Name, number)
		switch have := w.find(t, name); {
		case have == nil:
			w.add(key{table: t, chain: name}, content)
			return name
		case have.Value == content:
			return name
		}
	}
}

func (w *portWriter) find(t table, name string) *object {
	for i := w.start; i < len(w.out); i++ {
		if k := &w.out[i].Key; k.table == t && k.rule == "" && k.chain == name {
			return &w.out[i]
		}
	}
	return nil
}

// pool makes the chain of the endpoints of a pool.
func (w *portWriter) pool(pool proxy.Pool) object {
	name, list := w.pools[pool], w.port.Pool(pool)
	sticks := w.port.Affinity.Enabled()
	b := w.buf[:0]
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
	w.buf = b
	return object{Key: key{table: nat, chain: name}, Value: string(b)}
}

// client writes the list of clients of an endpoint, in which they are looked up
// or entered.
func (w *portWriter) client(b []byte, chain string, at netip.AddrPort) []byte {
	return fmt.Appendf(b, " --name %s-%s --mask %s --rsource ", chain, at, w.page.wholeMask())
}

func (w *portWriter) translate(b []byte, to netip.AddrPort) []byte {
	b = append(b, "-j DNAT --to-destination "...)
	return append(to.AppendTo(b), '\n')
}
