package cluster

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

// Name is the name of a host.
type Name string

// The hosts.
const (
	// Node is the node that the backend under test serves.
	Node Name = "node"
	// Gateway owns the virtual addresses.
	Gateway Name = "gateway"
	// Client is a pod on the node; Local and Local2 are others, used as endpoints.
	Client Name = "client"
	Local  Name = "local"
	Local2 Name = "local2"
	// RemoteNode is another node; Remote and Remote2 are pods on it.
	RemoteNode Name = "remote-node"
	Remote     Name = "remote"
	Remote2    Name = "remote2"
	// Outside is a host outside of the cluster, in a source range that Services allow;
	// Stranger is in one that they do not allow.
	Outside  Name = "outside"
	Stranger Name = "stranger"
)

// The names of servers. A server of a pod has the name of the pod.
const (
	// ByHostNetwork is the server of an endpoint in the node's own network.
	ByHostNetwork = "host-network"
	// ByHost is the server at the node ports of the node.
	ByHost = "host"
	// ByGateway answers packets without translation.
	ByGateway = "gateway"
)

const (
	// ServicePort is the port of Services.
	ServicePort = 80
	// EndpointPort is the port of the servers of endpoints.
	EndpointPort = 8080
	// FirstNodePort is the first node port of tests. The node's own servers listen at NodePorts
	// ports from there on.
	FirstNodePort = 30000
	// NodePorts is the number of these ports.
	NodePorts = 32
)

// Host is a host of the cluster.
type Host struct {
	Name   Name
	Uplink Name         // the router that it is attached to; none for the node
	Link   string       // the router's interface towards it
	Addrs  []netip.Addr // the first one of each family is the main one
	// Crowd are the ranges of a crowd, one of each family.
	Crowd []netip.Prefix
}

// Addr returns the main address of a host in a family.
func (h *Host) Addr(family v1.IPFamily) netip.Addr {
	i := slices.IndexFunc(h.Addrs, func(a netip.Addr) bool { return ipaddr.FamilyOf(a) == family })
	if i < 0 {
		return netip.Addr{}
	}
	return h.Addrs[i]
}

// Hosts lists the hosts, each after its uplink.
func Hosts() []Host {
	return []Host{
		{Name: Node, Addrs: Addrs("172.18.0.2", "fd00:18::2")},
		{Name: Gateway, Uplink: Node, Link: "eth0", Addrs: Addrs("172.18.0.1", "fd00:18::1")},
		{Name: RemoteNode, Uplink: Node, Link: "eth1", Addrs: Addrs("172.18.0.3", "fd00:18::3")},
		{Name: Outside, Uplink: Node, Link: "eth2", Addrs: Addrs("192.0.2.10", "2001:db8:1::a"), Crowd: prefixes("192.0.2.0/24", "2001:db8:1::/112")},
		{Name: Stranger, Uplink: Node, Link: "eth3", Addrs: Addrs("198.51.100.10", "2001:db8:2::a"), Crowd: prefixes("198.51.100.0/24", "2001:db8:2::/112")},
		{Name: Local, Uplink: Node, Link: "cali-local", Addrs: Addrs("10.0.0.5", "fd00:10::5"), Crowd: prefixes("10.4.0.0/16", "fd00:10:4::/112")},
		{Name: Client, Uplink: Node, Link: "cali-client", Addrs: Addrs("10.0.0.6", "fd00:10::6"), Crowd: prefixes("10.6.0.0/16", "fd00:10:6::/112")},
		{Name: Local2, Uplink: Node, Link: "cali-local2", Addrs: Addrs("10.0.0.7", "fd00:10::7")},
		{Name: Remote, Uplink: RemoteNode, Link: "cali-remote", Addrs: Addrs("10.1.0.5", "fd00:10:1::5"), Crowd: prefixes("10.5.0.0/16", "fd00:10:5::/112")},
		{Name: Remote2, Uplink: RemoteNode, Link: "cali-remote2", Addrs: Addrs("10.1.0.6", "fd00:10:1::6")},
	}
}

// Find returns the host of a name.
func Find(name Name) Host {
	all := Hosts()
	return all[slices.IndexFunc(all, func(h Host) bool { return h.Name == name })]
}

// SecondaryAddrs are further addresses of the node, which it does not select as source by
// itself.
func SecondaryAddrs() []netip.Addr { return Addrs("172.18.1.2", "fd00:18:1::2") }

// VirtualRanges are the ranges of the addresses that Services may have:
// ClusterIPs, external addresses, addresses of load balancers.
func VirtualRanges() []netip.Prefix {
	return prefixes("10.96.0.0/16", "fd00:96::/112", "203.0.113.0/25", "2001:db8:e::/64", "203.0.113.128/25", "2001:db8:f::/64")
}

// PodRanges are the ranges of the pods of all nodes.
func PodRanges() []netip.Prefix { return prefixes("10.0.0.0/8", "fd00:10::/32") }

// Server is a server that the cluster always has.
type Server struct {
	At    Name
	Name  string
	Ports []uint16
}

// Servers lists the servers.
func Servers() []Server {
	all := []Server{
		{Node, ByHostNetwork, []uint16{EndpointPort}},
		{Node, ByHost, nil},
		{Gateway, ByGateway, []uint16{53, 80, 81, 443, EndpointPort, 8443}},
	}
	for i := range uint16(NodePorts) {
		all[1].Ports = append(all[1].Ports, FirstNodePort+i)
	}
	for _, at := range []Name{Local, Local2, Client, RemoteNode, Remote, Remote2} {
		all = append(all, Server{at, string(at), []uint16{EndpointPort}})
	}
	return all
}

// IsPod reports whether a host is a pod of the node.
func IsPod(at Name) bool { return slices.Contains([]Name{Client, Local, Local2}, at) }

// Entry returns the interface of the node that receives packets from a host; empty for
// the node itself.
func Entry(from Name) string {
	h := Find(from)
	for h.Uplink != "" && h.Uplink != Node {
		h = Find(h.Uplink)
	}
	return h.Link
}

// Addrs parses addresses.
func Addrs(all ...string) []netip.Addr {
	parsed := make([]netip.Addr, 0, len(all))
	for _, a := range all {
		parsed = append(parsed, netip.MustParseAddr(a))
	}
	return parsed
}

func prefixes(all ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, 0, len(all))
	for _, p := range all {
		parsed = append(parsed, netip.MustParsePrefix(p))
	}
	return parsed
}

// Single returns the prefix of an address alone.
func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Everything is the destination of the default route in the family of an address.
func Everything(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(ipaddr.Unspecified(ipaddr.FamilyOf(a)), 0)
}
