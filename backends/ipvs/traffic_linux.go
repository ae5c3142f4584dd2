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

// CountTraffic implements [backends.TrafficCounter]: the sums of the virtual servers of each service
// port, which the kernel updates every two seconds.
func (b *backend) CountTraffic(
	_ context.Context, s proxy.Snapshot, each func(port proxy.ServicePortName, connections uint64, packets, bytes [2]uint64),
) error {
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
		var connections uint64
		var packets, bytes [2]uint64
		served := false
		objects = r.render(s.Node(), port, objects[:0])
		for i := range objects {
			k := &objects[i].Key
			if k.kind != kindServer {
				continue
			}
			x, exists := stats[m.server(k)]
			served = served || exists
			connections += uint64(x.Connections)
			packets[0], packets[1] = packets[0]+uint64(x.PacketsIn), packets[1]+uint64(x.PacketsOut)
			bytes[0], bytes[1] = bytes[0]+x.BytesIn, bytes[1]+x.BytesOut
		}
		if served {
			each(port.Name, connections, packets, bytes)
		}
	}
	return nil
}

var _ backends.TrafficCounter = (*backend)(nil)
