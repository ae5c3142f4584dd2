package ipvs

import (
	"context"
	"fmt"
	"maps"

	moby "github.com/moby/ipvs"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// CountTraffic is CountTraffic of [proxy.Abilities]: the sums of the virtual servers of each service
// port, which the kernel updates every two seconds.
func (t *target) CountTraffic(_ context.Context, s proxy.Snapshot, each func(proxy.ServicePortName, proxy.Traffic)) error {
	t.mu.Lock()
	services, err := t.kernel.Services()
	env, m := backends.Env{Node: s.Node(), Facts: t.exact.facts}, marks{of: maps.Clone(t.marks.of)}
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
		objects = t.render(env, port, objects[:0])
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
