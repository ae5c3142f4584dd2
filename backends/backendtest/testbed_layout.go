package backendtest

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

// hostName is the name of a host of the testbed.
type hostName string

// The hosts.
const (
	// atNode is the node that the backend under test serves.
	atNode hostName = "node"
	// atGateway owns the virtual addresses.
	atGateway hostName = "gateway"
	// atClient is a pod on the node; atLocal and atLocal2 are others, used
	// as endpoints.
	atClient hostName = "client"
	atLocal  hostName = "local"
	atLocal2 hostName = "local2"
	// atRemoteNode is another node; atRemote and atRemote2 are pods on it.
	atRemoteNode hostName = "remote-node"
	atRemote     hostName = "remote"
	atRemote2    hostName = "remote2"
	// atOutside is a host outside of the cluster, in a source range that
	// Services allow; atStranger is in one that they do not allow.
	atOutside  hostName = "outside"
	atStranger hostName = "stranger"
)

// The names of servers. A server of a pod has the name of the pod.
const (
	// byHostNetwork is the server of an endpoint in the node's own network.
	byHostNetwork = "host-network"
	// byHost is the server at the node ports of the node.
	byHost = "host"
	// byGateway answers packets without translation.
	byGateway = "gateway"
)

const (
	// endpointPort is the port of the servers of endpoints.
	endpointPort = 8080
	// Node ports of tests are from firstHostPort on, hostPorts in number:
	// the node's own servers listen there.
	firstHostPort = 30000
	hostPorts     = 32
	// uplinkName is the interface of every host except the node.
	uplinkName = "eth0"
)

// hostSpec describes a host: its name, the router that it is attached to, its first
// address in each family.
type hostSpec struct {
	name       hostName
	uplink     hostName // the router that it is attached to; none for the node
	attachment string   // the router's interface towards it
	addrs      []netip.Addr
}

func (s *hostSpec) addr(family v1.IPFamily) netip.Addr {
	i := slices.IndexFunc(s.addrs, func(a netip.Addr) bool { return ipaddr.FamilyOf(a) == family })
	if i < 0 {
		return netip.Addr{}
	}
	return s.addrs[i]
}

// hostSpecs lists the hosts, each after its uplink.
func hostSpecs() []hostSpec {
	return []hostSpec{
		{name: atNode, addrs: addrs("172.18.0.2", "fd00:18::2")},
		{name: atGateway, uplink: atNode, attachment: "eth0", addrs: addrs("172.18.0.1", "fd00:18::1")},
		{name: atRemoteNode, uplink: atNode, attachment: "eth1", addrs: addrs("172.18.0.3", "fd00:18::3")},
		{name: atOutside, uplink: atNode, attachment: "eth2", addrs: addrs("192.0.2.10", "2001:db8:1::a")},
		{name: atStranger, uplink: atNode, attachment: "eth3", addrs: addrs("198.51.100.10", "2001:db8:2::a")},
		{name: atLocal, uplink: atNode, attachment: "cali-local", addrs: addrs("10.0.0.5", "fd00:10::5")},
		{name: atClient, uplink: atNode, attachment: "cali-client", addrs: addrs("10.0.0.6", "fd00:10::6")},
		{name: atLocal2, uplink: atNode, attachment: "cali-local2", addrs: addrs("10.0.0.7", "fd00:10::7")},
		{name: atRemote, uplink: atRemoteNode, attachment: "cali-remote", addrs: addrs("10.1.0.5", "fd00:10:1::5")},
		{name: atRemote2, uplink: atRemoteNode, attachment: "cali-remote2", addrs: addrs("10.1.0.6", "fd00:10:1::6")},
	}
}

// secondaryAddrs are further addresses of the node, which it does not select as source by
// itself.
func secondaryAddrs() []netip.Addr { return addrs("172.18.1.2", "fd00:18:1::2") }

// virtualRanges are the ranges of the addresses that Services may have:
// ClusterIPs, external addresses, addresses of load balancers.
func virtualRanges() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112"),
		netip.MustParsePrefix("203.0.113.0/25"), netip.MustParsePrefix("2001:db8:e::/64"),
		netip.MustParsePrefix("203.0.113.128/25"), netip.MustParsePrefix("2001:db8:f::/64"),
	}
}

// service is a server that the testbed always has.
type service struct {
	at    hostName
	name  string
	ports []uint16
}

func services() []service {
	all := []service{
		{atNode, byHostNetwork, []uint16{endpointPort}},
		{atNode, byHost, nil},
		{atGateway, byGateway, []uint16{53, 80, 81, 443, endpointPort, 8443}},
	}
	for i := range uint16(hostPorts) {
		all[1].ports = append(all[1].ports, firstHostPort+i)
	}
	for _, at := range []hostName{atLocal, atLocal2, atClient, atRemoteNode, atRemote, atRemote2} {
		all = append(all, service{at, string(at), []uint16{endpointPort}})
	}
	return all
}

func addrs(all ...string) []netip.Addr {
	parsed := make([]netip.Addr, 0, len(all))
	for _, a := range all {
		parsed = append(parsed, netip.MustParseAddr(a))
	}
	return parsed
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// everything is the destination of the default route in the family of a.
func everything(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(ipaddr.Unspecified(ipaddr.FamilyOf(a)), 0)
}
