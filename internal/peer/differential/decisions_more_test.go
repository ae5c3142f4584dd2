package differential

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"
	netutils "k8s.io/utils/net"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/proxy"
)

// oneFrontendAnAddress keeps one frontend of a port for each address: the ClusterIP
// before all others, and that of a load balancer, which has source ranges, before an
// external IP. Two rules for one address are one too many for maps in the kernel.
func oneFrontendAnAddress(e *expectation) int {
	taken := 0
	for _, p := range e.ports {
		n := len(p.frontends)
		slices.SortStableFunc(p.frontends, func(a, b frontend) int { return cmp.Compare(standing(a.kind), standing(b.kind)) })
		var kept []frontend
		for _, f := range p.frontends {
			if !slices.ContainsFunc(kept, func(o frontend) bool { return o.addr == f.addr }) {
				kept = append(kept, f)
			}
		}
		p.frontends = kept
		p.external = slices.ContainsFunc(kept, func(f frontend) bool { return f.kind != proxy.ClusterIP })
		taken += n - len(kept)
	}
	return taken
}

// standing ranks those who ask for an address.
func standing(k proxy.FrontendKind) int {
	return map[proxy.FrontendKind]int{proxy.ClusterIP: 0, proxy.LoadBalancer: 1, proxy.NodePort: 1, proxy.ExternalIP: 2}[k]
}

// oneOwnerAnAddress gives an address and port that several ports ask for to one of
// them, always the same one: the ClusterIP first, then load balancers, then external
// IPs; then the older Service; then the name. kube-proxy serves whichever it meets last.
func oneOwnerAnAddress(e *expectation) int {
	type address struct {
		addr     netip.Addr
		number   int
		protocol v1.Protocol
	}
	type claim struct {
		name proxy.ServicePortName
		kind proxy.FrontendKind
	}
	better := func(a, b claim) bool {
		return cmp.Or(
			cmp.Compare(standing(a.kind), standing(b.kind)),
			e.cluster.services[a.name.NamespacedName].CreationTimestamp.Compare(e.cluster.services[b.name.NamespacedName].CreationTimestamp.Time),
			a.name.Compare(b.name),
		) < 0
	}
	owners := map[address]claim{}
	for name, p := range e.ports {
		for _, f := range p.frontends {
			at, mine := address{f.addr, f.number, name.Protocol}, claim{name, f.kind}
			if owner, ok := owners[at]; !ok || better(mine, owner) {
				owners[at] = mine
			}
		}
	}
	taken := 0
	for name, p := range e.ports {
		n := len(p.frontends)
		p.frontends = slices.DeleteFunc(p.frontends, func(f frontend) bool {
			return owners[address{f.addr, f.number, name.Protocol}] != claim{name, f.kind}
		})
		taken += n - len(p.frontends)
	}
	return taken
}

// withoutExternalIPs makes external IPs that are ignored count for nothing. kube-proxy
// makes no rules for them, but still takes the Service for one that can be reached from
// outside, so that its external traffic policy counts.
func withoutExternalIPs(e *expectation) int {
	if utilfeature.DefaultFeatureGate.Enabled(features.AllowServiceExternalIPs) {
		return 0
	}
	taken := 0
	for name, p := range e.ports {
		kind := e.cluster.services[name.NamespacedName].Spec.Type
		if p.externalLocal && (kind == v1.ServiceTypeClusterIP || kind == "") {
			p.externalLocal = false
			taken++
		}
	}
	return taken
}

// affinityBounds keeps timeouts within what the API allows. kube-proxy writes negative
// ones into its rules.
func affinityBounds(e *expectation) int {
	taken := 0
	for _, p := range e.ports {
		was := p.affinity
		switch {
		case p.kube.SessionAffinityType() != v1.ServiceAffinityClientIP:
		case was <= 0:
			p.affinity = affinity.DefaultTimeout
		default:
			p.affinity = min(was, 24*time.Hour)
		}
		if p.affinity != was {
			taken++
		}
	}
	return taken
}

// unusableEndpoints drops endpoints whose address is none of the family, or one that
// the API refuses, and those whose port is none. kube-proxy forwards to them; one whose
// address cannot be read is called <nil>.
func unusableEndpoints(e *expectation) int {
	taken := 0
	for name, list := range e.endpoints {
		e.endpoints[name] = slices.DeleteFunc(list, func(r *record) bool {
			addr, err := netip.ParseAddr(r.ip)
			return err != nil || !usable(addr, name.Family) || r.port < 1 || r.port > 65535
		})
		taken += len(list) - len(e.endpoints[name])
	}
	return taken
}

// preferredRecords settles what counts where slices disagree about an address: what
// does not terminate, then what is ready, then what serves. kube-proxy agrees with the
// first, and for the rest takes the one that it meets last, in an order that is random.
func preferredRecords(e *expectation) int {
	taken := 0
	zone := e.topology[v1.LabelTopologyZone]
	for name, list := range e.endpoints {
		var lines []string
		for i, r := range list {
			all := e.records(name, r)
			if len(all) < 2 || !slices.ContainsFunc(all, func(o *record) bool { return o.line(zone) == r.line(zone) }) {
				continue
			}
			best := slices.MinFunc(all, preference)
			all = slices.DeleteFunc(all, func(o *record) bool { return preference(o, best) != 0 })
			// Among equals any will do, as long as it is one of them.
			if lines == nil {
				lines = e.ours.endpointLines(name)
			}
			chosen := max(0, slices.IndexFunc(all, func(o *record) bool { return slices.Contains(lines, o.line(zone)) }))
			if all[chosen].line(zone) != r.line(zone) {
				list[i] = all[chosen]
				taken++
			}
		}
	}
	return taken
}

// nowhere is a zone that no node is in.
const nowhere = "nowhere"

// namelessHints takes a hint for a zone without a name for one that is elsewhere. To
// kube-proxy it means a node without a zone.
func namelessHints(e *expectation) int {
	taken := 0
	if e.topology[v1.LabelTopologyZone] != "" {
		return 0
	}
	for _, list := range e.endpoints {
		for i, r := range list {
			if r.zones.Has("") {
				changed := *r
				changed.zones = sets.New(nowhere)
				list[i] = &changed
				taken++
			}
		}
	}
	return taken
}

// verdicts says what becomes of packets to a frontend, as the proxiers make it out of
// the lists.
func (e *expectation) verdicts(p *picture, f frontend) []string {
	family := v1.IPv4Protocol
	if netutils.IsIPv6String(f.addr.String()) {
		family = v1.IPv6Protocol
	}
	if f.kind == proxy.NodePort && !primary(e.ours.snapshot.Node().Addresses, family).IsValid() {
		return nil
	}
	var out []string
	for _, s := range senders() {
		isLocal := p.InternalLocal
		if f.kind != proxy.ClusterIP {
			isLocal = p.ExternalLocal && s.name == "outside"
		}
		pool, action := p.Cluster, proxy.Forward
		if isLocal {
			pool = p.Local
		}
		switch {
		case f.restricted && !contains(f.sources, s.address(family)):
			action = proxy.Drop
		case !p.HasEndpoints:
			action = proxy.Reject
		case len(pool) == 0:
			action = proxy.Drop
		}
		to := netip.AddrPortFrom(f.addr, uint16(f.number)).String()
		out = append(out, verdictLine(to, s.name, action, pool))
	}
	return out
}
