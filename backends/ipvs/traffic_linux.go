package ipvs

import (
	"context"
	"fmt"
	"maps"

	moby "github.com/moby/ipvs"

	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// CountTraffic is CountTraffic of [proxy.Abilities]: the sums of the virtual servers of each service
// port, which the kernel updates every two seconds.
func (b *backend) CountTraffic(_ context.Context, s proxy.Snapshot, each func(proxy.ServicePortName, proxy.Traffic)) error {
	t := b.target
	t.mu.Lock()
	services, err := t.kernel.Services()
	r, m := t.renderer, marks{of: maps.Clone(t.marks.of)}
	t.mu.Unlock()
	if err != nil {
		return fmt.Errorf("ipvs: traffic: %w", err)
	}
	stats := make(map[ipvs.ServiceKey]moby.SvcStats, len(services))
	for i := range services {
		if s := &services[i]; t.isTagged(s) {
			stats[s.Key] = s.Stats
		}
	}
	var objects []object
	for port := range s.All() {
		var sum proxy.Traffic
		served := false
		objects = r.render(s.Node(), port, objects[:0])
		for i := range objects {
			k := &objects[i].Key
			if k.kind != kindServer {
				continue
			}
			x, exists := stats[m.server(k)]
			served = served || exists
			sum.Connections += uint64(x.Connections)
			sum.PacketsIn += uint64(x.PacketsIn)
			sum.PacketsOut += uint64(x.PacketsOut)
			sum.BytesIn += x.BytesIn
			sum.BytesOut += x.BytesOut
		}
		if served {
			each(port.Name, sum)
		}
	}
	return nil
}
