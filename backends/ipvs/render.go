package ipvs

import (
	"net/netip"
	"slices"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// renderer renders the objects of service ports. It is immutable.
type renderer struct {
	options Options
	// scheduler is the value of virtual servers with the default scheduler.
	scheduler value
	prefix    string // of sets and chains
	tag       uint32 // in the flags of its virtual servers
}

// newRenderer returns a renderer for complete options.
func newRenderer(o Options) (*renderer, error) {
	scheduler, err := parseScheduler(o.Scheduler)
	r := &renderer{options: o, scheduler: scheduler, prefix: xtables.Prefix(o.Identity.Name)}
	r.tag, _ = identify(r.prefix)
	return r, err
}

// render is a [backends.Render].
func (r *renderer) render(env backends.Env, port *proxy.ServicePort, out []object) []object {
	if port == nil {
		return append(out, object{Key: key{kind: kindRules}, Value: value{rules: r.rulesText(env.Node)}, Payload: env.Node})
	}
	if !slices.Contains(r.options.Families, port.Name.Family) {
		return out
	}
	w := portWriter{node: env.Node, port: port, protocol: ipaddr.ProtocolNumber(port.Name.Protocol), out: out}
	w.facts, _ = env.Facts.(facts)
	w.value = r.server(w.schedulers, port)
	w.healthCheck()
	for i := range port.Frontends {
		f := &port.Frontends[i]
		if f.Kind != proxy.NodePort {
			w.serviceAddress(f)
			continue
		}
		for _, a := range w.host {
			at := netip.AddrPortFrom(a, f.Addr.Port())
			if ipaddr.FamilyOf(a) == port.Name.Family && w.node.NodePorts.Contains(a) && !w.taken[frontend{key{protocol: w.protocol, addr: at}}] {
				w.frontend(f, at)
			}
		}
	}
	return w.out
}

// healthCheck has packets to the health check node port accepted at each address of the node.
func (w *portWriter) healthCheck() {
	if w.port.HealthCheckNodePort == 0 {
		return
	}
	for _, a := range w.host {
		if ipaddr.FamilyOf(a) == w.port.Name.Family {
			at := netip.AddrPortFrom(a, w.port.HealthCheckNodePort)
			w.add(key{kind: setHealthChecks.kind(), set: setHealthChecks, protocol: ipaddr.TCP, addr: at}, value{})
		}
	}
}

// server returns the value of the virtual servers of a service port.
func (r *renderer) server(schedulers []string, port *proxy.ServicePort) (v value) {
	v, _ = r.schedulerOf(schedulers, port) // limits reports the error
	if port.Affinity.Enabled() {
		v.flags |= flagPersistent
		v.timeout = seconds(port.Affinity.Timeout)
	}
	return v
}

// seconds returns the timeout of persistence, which the kernel has in seconds.
func seconds(d time.Duration) uint32 {
	return uint32((d + time.Second - 1) / time.Second)
}

// portWriter writes the objects of one service port.
type portWriter struct {
	facts
	node     *proxy.Node
	port     *proxy.ServicePort
	protocol uint8
	value    value // of its virtual servers
	out      []object
}

func (w *portWriter) add(k key, v value) { w.out = append(w.out, object{Key: k, Value: v}) }

func (w *portWriter) entry(s setID, at netip.AddrPort) {
	w.add(key{kind: s.kind(), set: s, protocol: w.protocol, addr: at}, value{})
}

// serviceAddress writes a frontend at an address of a Service. An address that an interface
// of the node has stays there, and its other ports stay ports of the node.
func (w *portWriter) serviceAddress(f *proxy.Frontend) {
	if a := f.Addr.Addr(); !slices.Contains(w.host, a) {
		at := netip.AddrPortFrom(a, 0)
		w.add(key{kind: kindEntry, set: setAddresses, addr: at}, value{})
		w.add(key{kind: kindAddress, addr: at}, value{})
	}
	w.frontend(f, f.Addr)
}

// frontend writes a frontend at an address. Packets from outside, and packets from inside
// that have no other pool, are for the virtual server of the address; the others are for a virtual
// server of marked packets.
func (w *portWriter) frontend(f *proxy.Frontend, at netip.AddrPort) {
	w.firewall(f, at)
	pod, node, outside := f.Routes()
	w.class(pod, at, classPods())
	w.class(node, at, classNode())
	w.class(outside, at, classOutside())
	inside := f.FromInside
	switch {
	case outside.Action == proxy.Forward:
		w.server(at, false, outside.Pool)
		if inside.Action == proxy.Forward && inside.Pool != outside.Pool {
			w.entry(setMarks, at)
			w.server(at, true, inside.Pool)
			w.entry(setInside, at)
		}
	case inside.Action == proxy.Forward:
		w.server(at, false, inside.Pool)
	default:
		return
	}
	w.entry(setServers, at)
	w.entry(setOf(w.port, f.Kind), at)
}

// class writes what happens to the connections of a class.
func (w *portWriter) class(r proxy.TrafficRoute, at netip.AddrPort, c class) {
	switch {
	case r.Action == proxy.Drop:
		w.entry(c.drop, at)
	case r.Action == proxy.Reject:
		w.entry(c.reject, at)
	case r.Action == proxy.Forward && r.Masquerade == proxy.MasqueradeAlways:
		w.entry(c.masquerade, at)
	}
}

// firewall writes the allowed sources of a frontend. Where the node itself is allowed, the frontend's
// own address is one of them: a process of the node has it as its source, unless it chose another one.
func (w *portWriter) firewall(f *proxy.Frontend, at netip.AddrPort) {
	if !f.Restricted {
		return
	}
	w.entry(setFirewall, at)
	for _, p := range f.AllowedSources {
		for _, half := range halves(p.Masked()) {
			w.add(key{kind: kindEntry, set: setSources, protocol: w.protocol, addr: at, source: half}, value{})
		}
	}
}

// halves divides the range of all addresses, which a set cannot have.
func halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() > 0 {
		return []netip.Prefix{p}
	}
	first := netip.PrefixFrom(p.Addr(), 1)
	if p.Addr().Is4() {
		return []netip.Prefix{first, netip.PrefixFrom(netip.AddrFrom4([4]byte{0x80}), 1)}
	}
	return []netip.Prefix{first, netip.PrefixFrom(netip.AddrFrom16([16]byte{0x80}), 1)}
}

// server writes a virtual server with its real servers. Endpoints that only keep their
// existing flows have weight 0. The kernel ignores the ports of real servers of persistent servers for
// marked packets, so these are not persistent.
func (w *portWriter) server(at netip.AddrPort, inside bool, pool proxy.Pool) {
	k := key{kind: kindServer, protocol: w.protocol, inside: inside, addr: at}
	v := w.value
	if inside {
		v.flags, v.timeout = v.flags&^flagPersistent, 0
	}
	w.add(k, v)
	k.kind = kindDestination
	d := value{atOnce: refusesAtZero(v.scheduler)}
	real := w.port.Pool(pool)
	for i, e := range real {
		if i > 0 && e.Addr == real[i-1].Addr {
			continue // pools are sorted
		}
		k.real = e.Addr
		d.weight = 1
		w.add(k, d)
	}
	if d.atOnce {
		return
	}
	d.weight = 0
	for e := range w.port.DrainingOf(proxy.TrafficRoute{Action: proxy.Forward, Pool: pool}) {
		if !slices.ContainsFunc(real, func(x *endpoints.Endpoint) bool { return x.Addr == e.Addr }) {
			k.real = e.Addr
			w.add(k, d)
		}
	}
}
