package differential

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// vipkit is the model of this repository. It has a cache besides the cache of the tracker, with the
// endpoints that are in no pool.
type vipkit struct {
	tracker  *proxy.ServiceChangeTracker
	cache    *endpoints.Cache
	snapshot proxy.Snapshot
	ended    context.Context
	names    []proxy.ServicePortName
}

func newVipkit(options proxy.TrackerOptions) *vipkit {
	options.NodeName = nodeName
	options.LocalTraffic.Sources = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/64")}
	v := &vipkit{
		names:   portNames(),
		tracker: proxy.NewServiceChangeTracker(options),
		cache:   endpoints.NewCache(endpoints.View{NodeName: nodeName}, nil),
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	v.ended = ended
	v.tracker.Synced()
	return v
}

func (v *vipkit) service(old, now *v1.Service) {
	if now == nil {
		v.tracker.DeleteService(types.NamespacedName{Namespace: old.Namespace, Name: old.Name})
		return
	}
	v.tracker.UpdateService(now)
}

func (v *vipkit) slice(old, now *discoveryv1.EndpointSlice) {
	if now == nil {
		name := types.NamespacedName{Namespace: old.Namespace, Name: old.Name}
		v.tracker.DeleteEndpointSlice(name)
		v.cache.Delete(name)
		return
	}
	v.tracker.UpdateEndpointSlice(now)
	_ = v.cache.Update(now) // The comparison shows endpoints that the cache refuses.
}

func (v *vipkit) nodeChanged(now *v1.Node) {
	v.tracker.UpdateNode(now)
	if now != nil && now.Name == nodeName {
		v.cache.SetView(endpoints.View{NodeName: nodeName, Zone: now.Labels[v1.LabelTopologyZone]})
	}
}

// sync reads the newest snapshot, if there is a new one.
func (v *vipkit) sync() {
	if next, err := v.tracker.Next(v.ended, v.snapshot); err == nil {
		v.snapshot = next
	}
}

// portStates returns each port of the snapshot.
func (v *vipkit) portStates(ask bool) map[proxy.ServicePortName]*portState {
	all := map[proxy.ServicePortName]*portState{}
	for port := range v.snapshot.All() {
		p := &portState{
			Affinity:            port.Affinity.Timeout,
			InternalLocal:       port.InternalLocal,
			ExternalLocal:       port.ExternalLocal,
			HealthCheckNodePort: int(port.HealthCheckNodePort),
			HasEndpoints:        port.HasEndpoints,
			Cluster:             poolAddresses(port.Cluster),
			Local:               poolAddresses(port.Local),
			Reachable:           poolAddresses(port.Cluster, port.Local),
		}
		for _, f := range port.Frontends {
			p.Frontends = append(p.Frontends, frontend{
				kind: f.Kind, addr: f.Addr.Addr(), number: int(f.Addr.Port()), restricted: f.Restricted, sources: f.AllowedSources,
			}.String())
			if ask {
				p.Verdicts = append(p.Verdicts, v.verdicts(port, f)...)
			}
		}
		slices.Sort(p.Frontends)
		slices.Sort(p.Verdicts)
		all[port.Name] = p
	}
	return all
}

// endpointStates returns the endpoints in the cache of all possible ports.
func (v *vipkit) endpointStates() map[proxy.ServicePortName][]string {
	all := map[proxy.ServicePortName][]string{}
	for _, name := range v.names {
		if lines := v.endpointLines(name); lines != nil {
			all[name] = lines
		}
	}
	return all
}

func (v *vipkit) endpointLines(name proxy.ServicePortName) []string {
	var out []string
	for _, e := range v.cache.Endpoints(name) {
		words := []string{"none", "elsewhere", "here"}
		out = append(out, endpointLine(e.Addr.String(), []bool{e.Local, e.Ready, e.Serving, e.Terminating}, words[e.ZoneHint], words[e.NodeHint]))
	}
	slices.Sort(out)
	return out
}

// poolAddresses returns the addresses of several pools together, each once.
func poolAddresses(pools ...[]*endpoints.Endpoint) []string {
	var out []string
	for _, pool := range pools {
		for _, e := range pool {
			out = append(out, e.Addr.String())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// sender is the source of a packet.
type sender struct {
	name     string
	v4, v6   string
	fromNode bool
}

func senders() []sender {
	return []sender{
		{name: "a pod", v4: "10.244.9.9", v6: "fd00:244::99"},
		{name: "the node", v4: "192.0.2.1", v6: "2001:db8::1", fromNode: true},
		{name: "outside", v4: "198.51.100.7", v6: "2001:db8:5::7"},
	}
}

func (s sender) address(family v1.IPFamily) netip.Addr {
	if family == v1.IPv4Protocol {
		return netip.MustParseAddr(s.v4)
	}
	return netip.MustParseAddr(s.v6)
}

// verdicts returns what happens to packets to a frontend.
func (v *vipkit) verdicts(port *proxy.ServicePort, f proxy.Frontend) []string {
	to := f.Addr
	if f.Kind == proxy.NodePort {
		node := primary(v.snapshot.Node().Addresses, port.Name.Family)
		if !node.IsValid() {
			return nil
		}
		to = netip.AddrPortFrom(node, to.Port())
	}
	var out []string
	for _, s := range senders() {
		got := proxy.Route(v.snapshot, proxy.Packet{
			Protocol: port.Name.Protocol, Source: netip.AddrPortFrom(s.address(port.Name.Family), 40000), Destination: to,
			FromNode: s.fromNode, ToNode: f.Kind == proxy.NodePort,
		})
		var pool []string
		for _, e := range got.Endpoints {
			pool = append(pool, e.Addr.String())
		}
		slices.Sort(pool)
		out = append(out, verdictLine(f.Addr.String(), s.name, got.Action, pool))
	}
	return out
}

func verdictLine(to, from string, action proxy.Action, pool []string) string {
	if action != proxy.Forward {
		return to + " from " + from + ": " + action.String()
	}
	return to + " from " + from + ": " + strings.Join(pool, ", ")
}

// primary returns the first address of a family, if there is one.
func primary(all []netip.Addr, family v1.IPFamily) netip.Addr {
	i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Is4() == (family == v1.IPv4Protocol) })
	if i < 0 {
		return netip.Addr{}
	}
	return all[i]
}
