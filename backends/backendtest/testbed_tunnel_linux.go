package backendtest

import (
	"errors"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
)

const tunnelName = "vxlan0"

// tunnelAddrs are the addresses of the interface at one end of the tunnel.
func tunnelAddrs(at cluster.Name) []netip.Addr {
	if at == cluster.Node {
		return cluster.Addrs("10.0.255.1", "fd00:10:0:255::1")
	}
	return cluster.Addrs("10.1.255.1", "fd00:10:1:255::1")
}

// tunnelTo returns the route through the tunnel to its end at a host.
func tunnelTo(end cluster.Name, to netip.Prefix) netns.Route {
	i := slices.IndexFunc(tunnelAddrs(end), func(a netip.Addr) bool { return a.Is4() == to.Addr().Is4() })
	return netns.Route{To: to, Link: tunnelName, Via: tunnelAddrs(end)[i]}
}

// addTunnel makes a tunnel between the node and the other one for all traffic between their
// pods, as flannel does.
func (b *testbed) addTunnel(other *host) error {
	node := b.host(cluster.Node)
	ends := []struct {
		at, to *host
		over   string
	}{{node, other, other.Link}, {other, node, "eth0"}}
	for _, e := range ends {
		t := netns.Tunnel{
			Name: tunnelName, Over: e.over, MTU: b.world.tunnelMTU,
			Local: e.at.Addr(v1.IPv4Protocol), Remote: e.to.Addr(v1.IPv4Protocol),
		}
		if err := e.at.ns.AddVXLAN(t); err != nil {
			return err
		}
	}
	var errs []error
	for _, e := range ends {
		hardware, err := e.to.ns.HardwareAddr(tunnelName)
		errs = append(errs, err)
		for _, a := range tunnelAddrs(e.at.Name) {
			errs = append(errs, e.at.ns.AddAddress(tunnelName, cluster.Single(a)))
		}
		for _, a := range tunnelAddrs(e.to.Name) {
			errs = append(errs,
				e.at.ns.AddNeighbor(tunnelName, a, hardware),
				e.at.ns.AddRoute(netns.Route{To: cluster.Single(a), Link: tunnelName}))
		}
	}
	for _, p := range snapshots.Prefixes("10.0.0.0/24", "fd00:10::/64") {
		errs = append(errs, other.ns.AddRoute(tunnelTo(cluster.Node, p)))
	}
	for _, p := range cluster.RemotePods(false) {
		errs = append(errs, node.ns.AddRoute(tunnelTo(other.Name, p)))
	}
	return errors.Join(errs...)
}
