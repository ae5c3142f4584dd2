package hcn

import (
	"net/netip"
	"slices"
	"strings"
)

// Network is a HostComputeNetwork.
type Network struct {
	// ID is the GUID, Name what its creator calls it.
	ID, Name string
	// Type is the Type of the JSON form, such as L2Bridge or Overlay.
	Type string
	// Subnets are the ranges that its endpoints get addresses from, IpAddressPrefix of Ipams. They must be masked:
	// 10.244.1.0/24, not 10.244.1.5/24.
	Subnets []netip.Prefix
	// RemoteSubnets are the policies of type RemoteSubnetRoute.
	RemoteSubnets []RemoteSubnet
}

// IsOverlay reports whether pods of other nodes are reached through a tunnel.
func (n *Network) IsOverlay() bool { return strings.EqualFold(n.Type, "Overlay") }

// RemoteSubnet says at which provider address the pods of another node are reached.
type RemoteSubnet struct {
	// Prefix are the addresses that are reached elsewhere.
	Prefix netip.Prefix
	// ProviderAddress is the address of the node that has them.
	ProviderAddress netip.Addr
}

// Endpoint is a HostComputeEndpoint, schema version 2.0.
type Endpoint struct {
	// ID is the GUID, Name what its creator calls it.
	ID, Name string
	// NetworkID is HostComputeNetwork.
	NetworkID string
	// Addresses are the addresses in IpConfigurations, without their prefix lengths.
	Addresses []netip.Addr
	// MAC is MacAddress, in the form 02-11-0A-01-00-09; empty leaves the choice to HNS.
	MAC string
	// Remote is flag 1 of Flags: the endpoint is no container of this machine.
	Remote bool
	// ProviderAddress is the policy ProviderAddress; the zero Addr if there is none.
	ProviderAddress netip.Addr
}

// LoadBalancer is a HostComputeLoadBalancer, schema version 2.0.
type LoadBalancer struct {
	// ID is the GUID; the service chooses it.
	ID string
	// Endpoints are the IDs of HostComputeEndpoints.
	Endpoints []string
	// SourceVIP is the zero Addr if there is none.
	SourceVIP netip.Addr
	// FrontendVIPs is empty for the addresses of the node.
	FrontendVIPs []netip.Addr
	// PortMappings are the ports that are balanced.
	PortMappings []PortMapping
	// Flags say how.
	Flags LoadBalancerFlags
}

// PortMapping is an element of PortMappings.
type PortMapping struct {
	// Protocol is the number of IP: 6, 17 or 132.
	Protocol uint8
	// InternalPort is the port of the endpoints, ExternalPort the port of the frontends.
	InternalPort, ExternalPort uint16
	// Distribution is DistributionType.
	Distribution Distribution
	// Flags say how the port is balanced.
	Flags PortMappingFlags
}

// LoadBalancerFlags is Flags of a load balancer.
type LoadBalancerFlags uint32

// Flags of load balancers.
const (
	// DSR is the flag for direct server return.
	DSR LoadBalancerFlags = 1
	// IPv6 says that the addresses are of IPv6.
	IPv6 LoadBalancerFlags = 2
)

// PortMappingFlags is Flags of a port mapping.
type PortMappingFlags uint32

// Flags of port mappings.
const (
	// LocalRoutedVIP is the flag of that name in HNS.
	LocalRoutedVIP PortMappingFlags = 2
	// UseMux is the flag of that name in HNS.
	UseMux PortMappingFlags = 4
	// PreserveDIP is the flag of that name in HNS.
	PreserveDIP PortMappingFlags = 8
	// VIPExternalIP is the flag of that name in HNS.
	VIPExternalIP PortMappingFlags = 16
)

// Distribution says what of a packet chooses its endpoint.
type Distribution uint32

// The distributions.
const (
	// ByConnection: addresses, ports and protocol.
	ByConnection Distribution = 0
	// BySource: the client's address.
	BySource Distribution = 2
)

// Equal reports whether two load balancers have equal content. The ID, and the order of endpoints,
// do not count.
func (b *LoadBalancer) Equal(o *LoadBalancer) bool {
	return b.Flags == o.Flags && b.SourceVIP == o.SourceVIP &&
		slices.Equal(b.PortMappings, o.PortMappings) && slices.Equal(b.FrontendVIPs, o.FrontendVIPs) &&
		sameSet(b.Endpoints, o.Endpoints)
}

func sameSet(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	return slices.Equal(a, b) || slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
