package iptables_test

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// The rules, as text, for a Service with two endpoints on a node whose pods have addresses
// from 10.0.0.0/8.
func ExampleRules() {
	forward := func(m proxy.Masquerade) proxy.TrafficRoute {
		return proxy.TrafficRoute{Action: proxy.Forward, Masquerade: m}
	}
	name := types.NamespacedName{Namespace: "shop", Name: "web"}
	web := &proxy.ServicePort{
		Name: proxy.ServicePortName{NamespacedName: name, Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol},
		Frontends: []proxy.Frontend{{
			Kind: proxy.ClusterIP, Addr: netip.MustParseAddrPort("10.96.0.10:80"),
			FromInside: forward(proxy.MasqueradeNonPods), FromOutside: forward(proxy.MasqueradeAlways),
		}},
		Cluster: []*endpoints.Endpoint{
			{Addr: netip.MustParseAddrPort("10.0.0.5:8080"), Ready: true, Serving: true},
			{Addr: netip.MustParseAddrPort("10.0.1.7:8080"), Ready: true, Serving: true},
		},
	}
	node := &proxy.Node{LocalTraffic: proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	text, err := iptables.Rules(iptables.Options{}, v1.IPv4Protocol, proxy.NewSnapshot(node, web))
	if err != nil {
		fmt.Println(err)
	}
	nat, _, _ := strings.Cut(text, "*filter")
	fmt.Print(nat)
	// Output:
	// *nat
	// :VIPKIT-INPUT - [0:0]
	// :VIPKIT-MARK-MASQ - [0:0]
	// :VIPKIT-NODEPORTS - [0:0]
	// :VIPKIT-POSTROUTING - [0:0]
	// :VIPKIT-SERVICES - [0:0]
	// :VIPKIT-SVC-E3PXEPMWAWIUT6ZV - [0:0]
	// -A VIPKIT-INPUT -j MARK --set-xmark 0x0/0x4000
	// -A VIPKIT-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
	// -A VIPKIT-POSTROUTING -m mark ! --mark 0x4000/0x4000 -m conntrack --ctstate DNAT -m bpf --bytecode "6,32 0 0 16,7 0 0 0,32 0 0 12,29 0 1 0,6 0 0 65535,6 0 0 0" -j MASQUERADE --random-fully
	// -A VIPKIT-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
	// -A VIPKIT-POSTROUTING -j MARK --set-xmark 0x4000/0x0
	// -A VIPKIT-POSTROUTING -j MASQUERADE --random-fully
	// -A VIPKIT-SVC-E3PXEPMWAWIUT6ZV ! -s 10.0.0.0/8 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j VIPKIT-MARK-MASQ
	// -A VIPKIT-SVC-E3PXEPMWAWIUT6ZV -p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.0.0.5:8080
	// -A VIPKIT-SVC-E3PXEPMWAWIUT6ZV -p tcp -j DNAT --to-destination 10.0.1.7:8080
	// -A VIPKIT-NODEPORTS -d 127.0.0.0/8 -j RETURN
	// -A VIPKIT-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "shop/web cluster IP" -m tcp --dport 80 -j VIPKIT-SVC-E3PXEPMWAWIUT6ZV
	// -I POSTROUTING -m comment --comment "kubernetes postrouting rules (VIPKIT)" -j VIPKIT-POSTROUTING
	// -I INPUT -m comment --comment "kubernetes input rules (VIPKIT)" -j VIPKIT-INPUT
	// -I OUTPUT -m comment --comment "kubernetes service portals (VIPKIT)" -j VIPKIT-SERVICES
	// -I PREROUTING -m comment --comment "kubernetes service portals (VIPKIT)" -j VIPKIT-SERVICES
	// COMMIT
}

// New refuses invalid options.
func ExampleNew() {
	_, err := iptables.New(iptables.Options{Identity: backends.Identity{Mark: 3}})
	fmt.Println(err)
	// Output: iptables: identity: mark 0x3 is not a single bit
}
