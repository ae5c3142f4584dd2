package nftables

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// BenchmarkClassChange measures an endpoint more or less in a Service without session affinity that
// changes its class by that, beside other Services with or without it.
func BenchmarkClassChange(b *testing.B) {
	for _, affinity := range []bool{false, true} {
		for _, services := range []int{1000, 10_000} {
			b.Run(fmt.Sprintf("services=%d/affinity=%t", services, affinity), func(b *testing.B) {
				s := newStage(b)
				four, five := stagetest.Port(v1.IPv4Protocol, 0, 4), stagetest.Port(v1.IPv4Protocol, 0, 5)
				ports := []*proxy.ServicePort{four}
				for i := range services {
					p := stagetest.Port(v1.IPv4Protocol, 1+i, 1)
					if affinity {
						p = stickyPort(v1.IPv4Protocol, 1+i, 1)
					}
					ports = append(ports, p)
				}
				small := proxy.NewSnapshot(stagetest.Node(), ports...)
				large := small.Revert(proxy.NewSnapshot(stagetest.Node(), five), five.Name)
				s.Apply(b, small)
				states := [...]proxy.Snapshot{large, small}
				for i := 0; b.Loop(); i++ {
					s.Apply(b, states[i%2])
				}
			})
		}
	}
}
