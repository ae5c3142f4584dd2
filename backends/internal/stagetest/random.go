package stagetest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// RandomPort makes one of a few service ports, of any kind.
func RandomPort(r *rand.Rand, i int) *proxy.ServicePort {
	p := &proxy.ServicePort{Name: proxy.ServicePortName{
		NamespacedName: types.NamespacedName{Namespace: "test", Name: fmt.Sprintf("service-%d", i)},
		Protocol:       v1.ProtocolTCP, Family: v1.IPv4Protocol,
	}}
	for e := range r.IntN(4) {
		p.Cluster = append(p.Cluster, &endpoints.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), byte(e + r.IntN(2))}), 8080)})
	}
	p.Local = p.Cluster[:len(p.Cluster)/2]
	p.HasEndpoints = len(p.Cluster) > 0
	route := func(pool proxy.Pool) proxy.TrafficRoute {
		if len(p.Pool(pool)) == 0 {
			return proxy.TrafficRoute{Action: []proxy.Action{proxy.Reject, proxy.Drop}[r.IntN(2)]}
		}
		return proxy.TrafficRoute{Action: proxy.Forward, Pool: pool, Masquerade: proxy.Masquerade(r.IntN(3))}
	}
	for kind := proxy.ClusterIP; kind <= proxy.NodePort; kind++ {
		if kind != proxy.ClusterIP && r.IntN(2) == 0 {
			continue
		}
		f := proxy.Frontend{
			Kind: kind, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(kind), byte(i)}), 80),
			FromInside: route(proxy.Pool(r.IntN(2))), FromOutside: route(proxy.Pool(r.IntN(2))),
		}
		if kind == proxy.NodePort {
			f.Addr = netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(30_000+i))
		}
		if kind == proxy.LoadBalancer && r.IntN(2) == 0 {
			f.Restricted, f.AllowedSources = true, snapshots.Prefixes("198.51.100.0/24", "203.0.113.0/24")[:r.IntN(3)]
		}
		p.Frontends = append(p.Frontends, f)
	}
	return p
}

// Additions returns the operations that add objects, shared ones once.
func Additions[K backends.Key, V comparable](objects []backends.Object[K, V]) []backends.Op[K, V] {
	ops := make([]backends.Op[K, V], 0, len(objects))
	shared := map[K]bool{}
	for _, o := range objects {
		if o.Key.Shared() && shared[o.Key] {
			continue
		}
		if o.Key.Shared() {
			shared[o.Key] = true
		}
		ops = append(ops, backends.Op[K, V]{Kind: backends.Add, Key: o.Key, Value: o.Value})
	}
	return ops
}
