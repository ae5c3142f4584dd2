package stagetest

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// Node returns a node with node ports at all addresses, pods with the addresses of [HostIP],
// and the ClusterIPs of [ClusterIP].
func Node() *proxy.Node {
	return &proxy.Node{
		Name:         "node",
		NodePorts:    proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes("10.0.0.0/9", "fd00:10::/32")},
		ServiceCIDRs: snapshots.Prefixes("10.128.0.0/9", "fd00:96::/32"),
	}
}

// ClusterIP returns address i of the service range of [Node].
func ClusterIP(fam v1.IPFamily, i int) netip.Addr { return address(fam, 128, 0x96, i+1) }

// HostIP returns pod address i of [Node].
func HostIP(fam v1.IPFamily, i int) netip.Addr { return address(fam, 0, 0x10, i) }

// address returns address i of the range 10.v4.0.0 or fd00:v6::.
func address(fam v1.IPFamily, v4, v6 byte, i int) netip.Addr {
	if fam == v1.IPv6Protocol {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, v6, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{10, v4 + byte(i>>16), byte(i >> 8), byte(i)})
}

// Endpoint returns an endpoint at a port of pod i.
func Endpoint(fam v1.IPFamily, i int, port uint16) *endpoints.Endpoint {
	return &endpoints.Endpoint{Addr: netip.AddrPortFrom(HostIP(fam, i), port), Ready: true, Serving: true}
}

// Forward returns a route to all endpoints.
func Forward(m proxy.Masquerade) proxy.TrafficRoute {
	return proxy.TrafficRoute{Action: proxy.Forward, Masquerade: m}
}

// Port returns service port i with a ClusterIP and n endpoints, which no other port has
// if n is at most 64. Its route forwards even if n is 0.
func Port(fam v1.IPFamily, i, n int) *proxy.ServicePort {
	p := &proxy.ServicePort{
		Name: proxy.ServicePortName{
			NamespacedName: types.NamespacedName{Namespace: "test", Name: fmt.Sprintf("service-%05d", i)},
			Protocol:       v1.ProtocolTCP, Family: fam,
		},
		Frontends: []proxy.Frontend{{
			Kind: proxy.ClusterIP, Addr: netip.AddrPortFrom(ClusterIP(fam, i), 80),
			FromInside: Forward(proxy.MasqueradeNonPods), FromOutside: Forward(proxy.MasqueradeAlways),
		}},
	}
	for e := range n {
		p.Cluster = append(p.Cluster, Endpoint(fam, 1+i*64+e, 8080))
	}
	return p
}

// NodePort returns a frontend at all addresses of the node.
func NodePort(fam v1.IPFamily, port uint16) proxy.Frontend {
	addr := netip.IPv4Unspecified()
	if fam == v1.IPv6Protocol {
		addr = netip.IPv6Unspecified()
	}
	return proxy.Frontend{
		Kind: proxy.NodePort, Addr: netip.AddrPortFrom(addr, port),
		FromInside: Forward(proxy.MasqueradeAlways), FromOutside: Forward(proxy.MasqueradeAlways),
	}
}
