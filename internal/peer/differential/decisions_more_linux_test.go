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
// before all others, and the frontend of a load balancer, which has source ranges, before an
// external IP. A map in the kernel has only one element for an address.
func oneFrontendAnAddress(e *expectation) int {
	count := 0
	for _, p := range e.ports {
		n := len(p.frontends)
		slices.SortStableFunc(p.frontends, func(a, b frontend) int { return cmp.Compare(precedence(a.kind), precedence(b.kind)) })
		var kept []frontend
		for _, f := range p.frontends {
			if !slices.ContainsFunc(kept, func(o frontend) bool { return o.addr == f.addr }) {
				kept = append(kept, f)
			}
		}
		p.frontends = kept
		p.external = slices.ContainsFunc(kept, func(f frontend) bool { return f.kind != proxy.ClusterIP })
		count += n - len(kept)
	}
	return count
}

// precedence ranks the kinds of frontends that claim an address.
func precedence(k proxy.FrontendKind) int {
	return map[proxy.FrontendKind]int{proxy.ClusterIP: 0, proxy.LoadBalancer: 1, proxy.NodePort: 1, proxy.ExternalIP: 2}[k]
}

// oneOwnerAnAddress gives an address and port that several ports claim to one of them,
// always the same one: the ClusterIP first, then load balancers, then external IPs; then
// the older Service; then the name. kube-proxy serves the one that it handles last.
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
			cmp.Compare(precedence(a.kind), precedence(b.kind)),
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
	count := 0
	for name, p := range e.ports {
		n := len(p.frontends)
		p.frontends = slices.DeleteFunc(p.frontends, func(f frontend) bool {
			return owners[address{f.addr, f.number, name.Protocol}] != claim{name, f.kind}
		})
		count += n - len(p.frontends)
	}
	return count
}

// withoutExternalIPs ignores external IPs completely if the feature gate is off. kube-proxy
// makes no rules for them, but still treats the Service as one that can be reached from
// outside, so that its external traffic policy has an effect.
func withoutExternalIPs(e *expectation) int {
	if utilfeature.DefaultFeatureGate.Enabled(features.AllowServiceExternalIPs) {
		return 0
	}
	count := 0
	for name, p := range e.ports {
		kind := e.cluster.services[name.NamespacedName].Spec.Type
		if p.externalLocal && (kind == v1.ServiceTypeClusterIP || kind == "") {
			p.externalLocal = false
			count++
		}
	}
	return count
}

// affinityBounds keeps timeouts within the limits of the API. kube-proxy writes negative
// ones into its rules.
func affinityBounds(e *expectation) int {
	count := 0
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
			count++
		}
	}
	return count
}

// unusableEndpoints drops endpoints whose address is not of the family, or one that the
// API refuses, and those with an invalid port. kube-proxy forwards to them; it writes <nil>
// for an address that it cannot parse.
func unusableEndpoints(e *expectation) int {
	count := 0
	for name, list := range e.endpoints {
		e.endpoints[name] = slices.DeleteFunc(list, func(r *record) bool {
			addr, err := netip.ParseAddr(r.ip)
			return err != nil || !usable(addr, name.Family) || r.port < 1 || r.port > 65535
		})
		count += len(list) - len(e.endpoints[name])
	}
	return count
}

// preferredRecords chooses a record if slices disagree about an address: one that does not
// terminate, then a ready one, then a serving one. kube-proxy agrees about the first, and
// otherwise chooses the record that it handles last, in random order.
func preferredRecords(e *expectation) int {
	count := 0
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
			// Any of several equal records is valid.
			if lines == nil {
				lines = e.ours.endpointLines(name)
			}
			chosen := max(0, slices.IndexFunc(all, func(o *record) bool { return slices.Contains(lines, o.line(zone)) }))
			if all[chosen].line(zone) != r.line(zone) {
				list[i] = all[chosen]
				count++
			}
		}
	}
	return count
}

// nowhere is a zone without nodes.
const nowhere = "nowhere"

// namelessHints treats a hint for a zone without a name as one for another zone. For
// kube-proxy it is the zone of nodes without a zone.
func namelessHints(e *expectation) int {
	count := 0
	if e.topology[v1.LabelTopologyZone] != "" {
		return 0
	}
	for _, list := range e.endpoints {
		for i, r := range list {
			if r.zones.Has("") {
				changed := *r
				changed.zones = sets.New(nowhere)
				list[i] = &changed
				count++
			}
		}
	}
	return count
}

// verdicts returns what happens to packets to a frontend, as the proxiers decide it from the
// lists of endpoints.
func (e *expectation) verdicts(p *portState, f frontend) []string {
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
