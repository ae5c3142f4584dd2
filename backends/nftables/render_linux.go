package nftables

import (
	"fmt"
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// renderer renders the objects that service ports need. It is immutable.
type renderer struct {
	options Options
	// form is part of the hashes of all chains: it has what all of them depend on.
	form string
}

func newRenderer(o Options) *renderer {
	return &renderer{options: o, form: fmt.Sprintf("%s %x", layout, o.Identity.Mark)}
}

// render appends the objects that a service port needs; without a port, those that every
// table needs.
func (r *renderer) render(env backends.Env, port *proxy.ServicePort, out []object) []object {
	if port != nil {
		w := r.writer(env.Node, port, out)
		if r.serves(w.fam) {
			w.all()
		}
		return w.out
	}
	for _, fam := range nft.Families() {
		if r.serves(fam) {
			out = r.static(env.Node, fam, out)
		}
	}
	return out
}

func (r *renderer) serves(fam nfnetlink.Family) bool {
	return len(r.options.Families) == 0 ||
		slices.ContainsFunc(r.options.Families, func(f v1.IPFamily) bool { return nft.FamilyOf(f) == fam })
}

// affinityID names the affinity maps of a service port: short, and the same in
// every process.
func affinityID(name proxy.ServicePortName) string {
	return digest(fmt.Appendf(nil, "%q", []string{name.Namespace, name.Name, name.Port, string(name.Protocol)}))
}

// portWriter appends the objects of one service port.
type portWriter struct {
	*renderer
	node  *proxy.Node
	port  *proxy.ServicePort
	out   []object
	fam   nfnetlink.Family
	proto uint8
	// affinity is the part of the names of the port's own affinity maps; empty
	// without affinity.
	affinity string
}

func (r *renderer) writer(node *proxy.Node, port *proxy.ServicePort, out []object) portWriter {
	w := portWriter{
		renderer: r, node: node, port: port, out: out,
		fam: nft.FamilyOf(port.Name.Family), proto: ipaddr.ProtocolNumber(port.Name.Protocol),
	}
	if port.Affinity.Enabled() {
		w.affinity = affinityID(port.Name)
	}
	return w
}

// all appends all objects that the service port needs.
func (w *portWriter) all() {
	for i := range w.port.Frontends {
		w.frontend(&w.port.Frontends[i])
	}
	for _, pool := range [...][]*endpoints.Endpoint{w.port.Cluster, w.port.Local} {
		for _, e := range pool {
			w.hairpin(w.slot(e))
		}
	}
}

func (w *portWriter) slot(e *endpoints.Endpoint) slot {
	return slot{addr: bytesOf(w.fam, e.Addr.Addr()), port: e.Addr.Port()}
}

func (w *portWriter) add(k key, v value) { w.out = append(w.out, object{Key: k, Value: v}) }

// frontend adds the objects that one frontend needs.
func (w *portWriter) frontend(f *proxy.Frontend) {
	at := w.at(f)
	if f.Kind == proxy.ClusterIP {
		w.add(key{kind: kindClusterIP, fam: w.fam, addr: at.addr}, value{})
	}
	if f.Restricted {
		w.restriction(f, at)
	}
	if w.affinity != "" {
		w.rememberClients(f, at)
	}
	w.add(at.as(kindFrontend), to(w.verdict(f)))
	w.slots(f, at)
}

// at returns the fields that are common to the keys of all objects of a frontend.
func (w *portWriter) at(f *proxy.Frontend) key {
	at := key{fam: w.fam, proto: w.proto, port: f.Addr.Port()}
	if f.Kind != proxy.NodePort {
		at.addr = bytesOf(w.fam, f.Addr.Addr())
	}
	return at
}

// hairpin adds an endpoint to the set of hairpins, so that the last rule of chain postrouting
// masquerades its connections to itself.
func (w *portWriter) hairpin(s slot) {
	w.add(key{kind: kindHairpin, fam: w.fam, eaddr: s.addr}, value{})
}

// addEndpoint adds an endpoint to a pool of a frontend.
func (w *portWriter) addEndpoint(at key, pool proxy.Pool, s slot) {
	at.kind, at.pool, at.eaddr, at.eport = kindEndpoint, pool, s.addr, s.port
	w.add(at, value{})
}

// sticky adds an endpoint for which clients may have affinity.
func (w *portWriter) sticky(set handle, s slot) { w.add(stickyKey(w.fam, set, s), value{}) }

// nodePortClient adds an endpoint for which clients of a node port may have affinity. The
// port number of a connection does not show that its destination was the node: another
// Service, or another program, may use the number at an address of its own.
func (w *portWriter) nodePortClient(f *proxy.Frontend, at key, s slot) {
	if f.Kind == proxy.NodePort {
		at.kind, at.eaddr, at.eport = kindNodePortClient, s.addr, s.port
		w.add(at, value{})
	}
}

// affinitySet returns the name of the map of the clients of a pool.
func (w *portWriter) affinitySet(pool proxy.Pool) handle {
	return handleOf(affinityMap(w.affinity, pool))
}

func (k key) as(kind kind) key {
	k.kind = kind
	return k
}

// slots adds the endpoints that a frontend chooses from.
func (w *portWriter) slots(f *proxy.Frontend, at key) {
	for _, pool := range poolsOf(f) {
		for _, e := range w.port.Pool(pool) {
			w.addEndpoint(at, pool, w.slot(e))
		}
	}
}

// poolsOf returns the pools that the routes of a frontend choose from.
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

// restriction adds the objects that drop packets to a frontend, except those from its allowed
// sources.
func (w *portWriter) restriction(f *proxy.Frontend, at key) {
	verdict := to(handle{})
	if len(f.AllowedSources) > 0 {
		set, sources := sourceSet(w.fam, f.AllowedSources)
		w.out = append(w.out, set)
		verdict = to(w.chain("restrict-"+sources, "", kindSourceChain, func(a *nft.Assembler) {
			a.Rule(a.SourceNotInSet(sources), a.Drop())
		}))
	}
	w.add(at.as(kindRestriction), verdict)
}

// chain adds a chain whose rules depend on its name, on details and on the options, and
// returns the handle of its name.
func (w *portWriter) chain(name, details string, kind kind, rules func(*nft.Assembler)) handle {
	o := w.renderer.chain(chainSpec{fam: w.fam, name: name, details: details, kind: kind}, rules)
	w.out = append(w.out, o)
	return o.Key.name
}

// rememberClients adds the objects for the session affinity of a frontend: the maps of the
// clients of each pool, the endpoints that these maps may have, and the chains that add
// clients to the maps.
func (w *portWriter) rememberClients(f *proxy.Frontend, at key) {
	for _, pool := range poolsOf(f) {
		for _, set := range affinitySets(w.fam, affinityMap(w.affinity, pool)) {
			w.out = append(w.out, setObject(w.fam, &setDefinition{set: set}))
		}
		set := w.affinitySet(pool)
		for _, e := range w.port.Pool(pool) {
			w.sticky(set, w.slot(e))
			w.nodePortClient(f, at, w.slot(e))
		}
	}
	if recorder := w.recorder(f); recorder != (handle{}) {
		w.add(at.as(kindRecord), to(recorder))
	}
}

// recorder adds the chain that stores the endpoints of clients. The chain distinguishes
// sources that choose from different pools.
func (w *portWriter) recorder(f *proxy.Frontend) handle {
	inside := w.record(f.FromInside)
	if f.FromInside.Action == f.FromOutside.Action && f.FromInside.Pool == f.FromOutside.Pool {
		return inside
	}
	outside := w.record(f.FromOutside)
	if inside == outside { // neither route forwards
		return inside
	}
	in, out, traffic := text(inside), text(outside), w.node.LocalTraffic
	return w.chain("remember-"+w.affinity+"-by-source", in+" "+out+" "+detailsOf(traffic), kindStickChain, func(a *nft.Assembler) {
		if in != "" {
			for _, pods := range slices.Concat(a.FromPods(traffic), a.BridgedFromPods(traffic)) {
				a.Rule(pods, a.Goto(in))
			}
			a.Rule(a.SourceIsLocal(), a.Goto(in))
		}
		if out != "" {
			a.Rule(a.Goto(out))
		}
	})
}

// record adds the chain that stores the endpoints of one route's clients, if the route
// forwards.
func (w *portWriter) record(r proxy.TrafficRoute) handle {
	if r.Action != proxy.Forward {
		return handle{}
	}
	set, timeout := affinityMap(w.affinity, r.Pool), w.port.Affinity.Timeout
	return w.chain("remember-"+set, timeout.String(), kindPickChain, func(a *nft.Assembler) { a.Rule(remember(a, set, timeout)) })
}
