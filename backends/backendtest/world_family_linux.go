package backendtest

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// tracker makes a tracker that ignores objects and addresses of families that the world does
// not have.
func (b *testbed) tracker(o proxy.TrackerOptions) tracking {
	if !b.world.single {
		return proxy.NewServiceChangeTracker(o)
	}
	isOther := func(p netip.Prefix) bool { return !b.world.has(p.Addr()) }
	o.NodeAddresses = slices.DeleteFunc(slices.Clone(o.NodeAddresses), func(a netip.Addr) bool { return !b.world.has(a) })
	o.LocalTraffic.Sources = slices.DeleteFunc(slices.Clone(o.LocalTraffic.Sources), isOther)
	o.ServiceCIDRs = slices.DeleteFunc(slices.Clone(o.ServiceCIDRs), isOther)
	return onlyIPv6{proxy.NewServiceChangeTracker(o)}
}

// onlyIPv6 is a tracker that ignores objects and addresses of IPv4.
type onlyIPv6 struct{ *proxy.ServiceChangeTracker }

// UpdateService implements [proxy.ServiceHandler].
func (o onlyIPv6) UpdateService(s *v1.Service) {
	if a, err := netip.ParseAddr(s.Spec.ClusterIP); err != nil || a.Is6() {
		o.ServiceChangeTracker.UpdateService(s)
	}
}

// UpdateEndpointSlice implements [proxy.ServiceHandler].
func (o onlyIPv6) UpdateEndpointSlice(s *discoveryv1.EndpointSlice) {
	if s.AddressType == discoveryv1.AddressTypeIPv6 {
		o.ServiceChangeTracker.UpdateEndpointSlice(s)
	}
}

// UpdateNode implements [proxy.ServiceChangeTracker].
func (o onlyIPv6) UpdateNode(n *v1.Node) {
	n = n.DeepCopy()
	n.Status.Addresses = slices.DeleteFunc(n.Status.Addresses, func(a v1.NodeAddress) bool {
		ip, err := netip.ParseAddr(a.Address)
		return err == nil && ipaddr.FamilyOf(ip) == v1.IPv4Protocol
	})
	o.ServiceChangeTracker.UpdateNode(n)
}
