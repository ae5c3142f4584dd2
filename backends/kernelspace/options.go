package kernelspace

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// Options configure a backend. Network is required.
type Options struct {
	// Identity begins the names of the endpoints that the backend makes. Mark and Priority have no
	// effect.
	Identity backends.Identity
	// Network is the name of the HNS network of the pods, which a CNI plugin makes. Until it
	// exists, Apply fails with [backends.ErrUnavailable].
	Network string
	// Families are the IP families to serve; empty means both. Where HNS or the network has no
	// IPv6, service ports of IPv6 fail with [proxy.ErrUnsupported].
	Families []v1.IPFamily
	// IPv4Fallback leaves service ports of IPv6 unserved, instead, where HNS or the network has no
	// IPv6. Then CheckNode says so.
	IPv4Fallback bool
	// DSR uses direct server return for ClusterIPs: answers do not pass the load balancer again.
	// Apply fails with [proxy.ErrUnsupported] if HNS cannot do that. For external addresses of
	// Services whose external traffic policy is Local it is used wherever HNS can.
	DSR bool
	// SourceVIPs are the addresses, at most one of each family, from which load balancers send to
	// endpoints. For a family without one, HNS chooses. An overlay network needs one of IPv4 that
	// nothing else has; the backend makes an endpoint with it.
	SourceVIPs []netip.Addr
	// HostMAC is the MAC address of the interface that has the node's address, in the form
	// 00-15-5D-01-02-03. An overlay network needs it.
	HostMAC string
	// HealthChecks forwards health checks of load balancers to the node.
	HealthChecks HealthChecks
	// StateFile is where the backend keeps the IDs of its load balancers, which have no names, so
	// that after a restart it can remove those that no Service needs any more. Without it
	// such ones stay. The folder must exist, and each process needs a file of its own.
	StateFile string
	// ServeRestricted serves addresses of load balancers also if only some sources may use them
	// (spec.loadBalancerSourceRanges): HNS cannot check the source, so the load
	// balancer in front of the node must. Without it such addresses are not served.
	ServeRestricted bool
}

// HealthChecks says how health checks that a load balancer sends to its own address get to the
// node. The zero value leaves them alone.
type HealthChecks struct {
	// Endpoint is the name of the HNS endpoint of the node, in most networks "cbr0"; empty for
	// no forwarding.
	Endpoint string
	// Port is the port of Services without health check node port: the port of the proxy's own
	// health server.
	Port uint16
}

// complete fills in defaults, or returns an error for invalid options.
func (o Options) complete() (Options, error) {
	var err error
	if o.Identity, err = o.Identity.Complete(backends.Identity{Name: backends.DefaultName, Mark: 1}); err != nil {
		return o, fmt.Errorf("kernelspace: %w", err)
	}
	if o.Network == "" {
		return o, fmt.Errorf("kernelspace: Options.Network is empty: want the name of the HNS network of the pods")
	}
	for _, f := range o.Families {
		if f != v1.IPv4Protocol && f != v1.IPv6Protocol {
			return o, fmt.Errorf("kernelspace: unknown IP family %q", f)
		}
	}
	if len(o.Families) == 0 {
		o.Families = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	}
	for i, a := range o.SourceVIPs {
		if !a.IsValid() || a.Is4In6() || slices.ContainsFunc(o.SourceVIPs[:i], func(b netip.Addr) bool { return b.Is4() == a.Is4() }) {
			return o, fmt.Errorf("kernelspace: Options.SourceVIPs: %v: want at most one address of each family", o.SourceVIPs)
		}
	}
	return o, nil
}

// sourceVIP returns the source address of load balancers of a family; the zero Addr for none.
func (o *Options) sourceVIP(family v1.IPFamily) netip.Addr {
	for _, a := range o.SourceVIPs {
		if ipaddr.FamilyOf(a) == family {
			return a
		}
	}
	return netip.Addr{}
}
