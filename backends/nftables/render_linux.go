package nftables

import (
	"fmt"
	"slices"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// render appends the objects that a service port needs; without a port, those
// that are always there.
func (b *book) render(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	p := b.page(node)
	if port != nil {
		if b.serves(familyOf(port.Name.Family)) {
			return p.port(port, out)
		}
		return out
	}
	for _, fam := range []family{ipv4, ipv6} {
		if b.serves(fam) {
			out = p.static(fam, out)
		}
	}
	return out
}

func (b *book) serves(fam family) bool {
	return len(b.options.Families) == 0 || slices.Contains(b.options.Families, fam.api())
}

// port appends the objects of one service port.
func (p *page) port(port *proxy.ServicePort, out []object) []object {
	w := portWriter{page: p, port: port, out: out}
	w.identify()
	for i := range port.Frontends {
		w.frontend(&port.Frontends[i])
	}
	for _, pool := range [...][]*endpoints.Endpoint{port.Cluster, port.Local} {
		for _, e := range pool {
			w.hairpin(w.slot(e))
		}
	}
	return w.out
}

// affinityID names the affinity maps of a service port: short, and the same in
// every process.
func affinityID(name proxy.ServicePortName) string {
	return digest(fmt.Appendf(nil, "%q", []string{name.Namespace, name.Name, name.Port, string(name.Protocol)}))
}

// portWriter appends the objects of one service port.
type portWriter struct {
	page     *page
	port     *proxy.ServicePort
	out      []object
	fam      family
	proto    uint8
	affinity string
}

// identify fills in what follows from the port's name.
func (w *portWriter) identify() {
	w.fam, w.proto = familyOf(w.port.Name.Family), protocolNumber(w.port.Name.Protocol)
	if w.port.Affinity.Enabled() {
		w.affinity = affinityID(w.port.Name)
	}
}

func (w *portWriter) slot(e *endpoints.Endpoint) slot {
	return slot{addr: w.fam.bytes(e.Addr.Addr()), port: e.Addr.Port()}
}

func (w *portWriter) add(k key, v value) { w.out = append(w.out, object{Key: k, Value: v}) }

// frontend adds what one frontend needs.
func (w *portWriter) frontend(f *proxy.Frontend) {
	at := w.at(f)
	if f.Kind == proxy.ClusterIP {
		w.add(key{kind: kindClusterIP, fam: w.fam, addr: at.addr}, 0)
	}
	if f.Restricted {
		w.restriction(f, at)
	}
	q := query(w.port, f, w.affinity)
	v := w.page.verdict(q)
	if w.affinity != "" {
		w.memory(f, at, &q)
	}
	w.out = append(w.out, v.chains...)
	w.add(at.as(kindFrontend), to(v.ref))
	w.slots(f, at)
}

// at gives what all objects of a frontend have in their keys.
func (w *portWriter) at(f *proxy.Frontend) key {
	at := key{fam: w.fam, proto: w.proto, port: f.Addr.Port()}
	if f.Kind != proxy.NodePort {
		at.addr = w.fam.bytes(f.Addr.Addr())
	}
	return at
}

// hairpin makes connections of an endpoint that come back to itself be
// masqueraded.
func (w *portWriter) hairpin(s slot) {
	w.add(key{kind: kindHairpin, fam: w.fam, eaddr: s.addr}, 0)
}

// filled puts an endpoint into a pool of a frontend.
func (w *portWriter) filled(at key, pool proxy.Pool, s slot) {
	at.kind, at.pool, at.eaddr, at.eport = kindEndpoint, pool, s.addr, s.port
	w.add(at, 0)
}

// sticky lets clients be remembered with an endpoint.
func (w *portWriter) sticky(set name, s slot) { w.add(stickyKey(w.fam, set, s), 0) }

// nodePortClient lets clients of a node port be remembered with an endpoint. That a
// connection was made to such a port does not say that it was to the node: another
// Service, or another program, may use the number at an address of its own.
func (w *portWriter) nodePortClient(f *proxy.Frontend, at key, s slot) {
	if f.Kind == proxy.NodePort {
		at.kind, at.eaddr, at.eport = kindNodePortClient, s.addr, s.port
		w.add(at, 0)
	}
}

// affinitySet is the set by which the clients of a pool are known.
func (w *portWriter) affinitySet(pool proxy.Pool) name {
	return w.page.names.of(w.fam).number(affinityMap(w.affinity, pool))
}

func (k key) as(kind kind) key {
	k.kind = kind
	return k
}

// slots adds the endpoints that a frontend chooses from.
func (w *portWriter) slots(f *proxy.Frontend, at key) {
	for _, pool := range poolsOf(f) {
		for _, e := range w.port.Pool(pool) {
			w.filled(at, pool, w.slot(e))
		}
	}
}

// poolsOf gives the pools that the routes of a frontend choose from.
func poolsOf(f *proxy.Frontend) []proxy.Pool {
	pools := make([]proxy.Pool, 0, 2)
	for _, pool := range [...]proxy.Pool{proxy.PoolCluster, proxy.PoolLocal} {
		if chooses(f, pool) {
			pools = append(pools, pool)
		}
	}
	return pools
}

// chooses reports whether a route of a frontend chooses from a pool.
func chooses(f *proxy.Frontend, pool proxy.Pool) bool {
	from := func(r proxy.TrafficRoute) bool { return r.Action == proxy.Forward && r.Pool == pool }
	return from(f.FromInside) || from(f.FromOutside)
}

// restriction adds what closes a frontend to all but its allowed sources.
func (w *portWriter) restriction(f *proxy.Frontend, at key) {
	leads := to(noName)
	if len(f.AllowedSources) > 0 {
		set, name := w.page.sourceSet(w.fam, f.AllowedSources)
		chain := w.page.chainObject(chainSpec{fam: w.fam, name: "restrict-" + name, level: levelSource}, func(a *assembler) {
			a.rule(a.sourceNotInSet(name), a.drop())
		})
		leads = to(chain.Key.name)
		w.out = append(w.out, set, chain)
	}
	w.add(at.as(kindRestriction), leads)
}

// memory adds what remembers the clients of a frontend, in the map of the pool
// that they chose from, and the endpoints that may be remembered.
func (w *portWriter) memory(f *proxy.Frontend, at key, q *verdictQuery) {
	for _, pool := range poolsOf(f) {
		text := affinityMap(w.affinity, pool)
		for _, set := range affinitySets(w.fam, text, w.page.options.AffinityClients) {
			w.out = append(w.out, w.page.setObject(w.fam, setDefinition{set: set}))
		}
		set := w.affinitySet(pool)
		for _, e := range w.port.Pool(pool) {
			w.sticky(set, w.slot(e))
			w.nodePortClient(f, at, w.slot(e))
		}
	}
	chains, ref := w.recorder(q)
	w.out = append(w.out, chains...)
	if ref != "" {
		w.add(at.as(kindRecord), to(w.page.names.of(w.fam).number(ref)))
	}
}

// recorder gives the chain that remembers clients: by source, where sources
// choose from different pools.
func (w *portWriter) recorder(q *verdictQuery) (chains []object, ref string) {
	record := func(to path) string {
		if to.action != proxy.Forward {
			return ""
		}
		name := "remember-" + affinityMap(w.affinity, to.pool)
		chains = append(chains, w.page.chainObject(chainSpec{
			fam: w.fam, name: name, details: w.port.Affinity.Timeout.String(), level: levelPick,
		}, func(a *assembler) { a.remembers(affinityMap(w.affinity, to.pool), w.port.Affinity) }))
		return name
	}
	inside, outside := record(q.node), record(q.outside)
	if inside == outside {
		return chains[:min(len(chains), 1)], inside
	}
	name := "remember-" + w.affinity + "-by-source"
	chains = append(chains, w.page.chainObject(chainSpec{
		fam: w.fam, name: name, details: inside + " " + outside, level: levelStick,
	}, func(a *assembler) {
		if inside != "" {
			a.fromPods(w.page.node.LocalTraffic, inside)
			a.rule(a.sourceIsLocal(), a.gotoChain(inside))
		}
		if outside != "" {
			a.rule(a.gotoChain(outside))
		}
	}))
	return chains, name
}

// remembers writes the rule that remembers the endpoint of a client.
func (a *assembler) remembers(set string, c affinity.Config) { a.rule(a.remember(set, c.Timeout)) }
