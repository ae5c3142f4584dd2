package ipvs

import (
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/ipvs"
)

// TestDrainingRounds: each of many virtual servers has its turn once in a round, and those that
// began to drain during a round in the next one.
func TestDrainingRounds(t *testing.T) {
	const servers, limit = 570, 200
	d := drainer{of: draining{}}
	server := func(n int) ipvs.ServiceKey {
		return ipvs.ServiceKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}), 80)}
	}
	for n := range servers {
		d.of.add(server(n), key{})
	}
	turns := map[ipvs.ServiceKey]int{}
	round := func(want, batches int) {
		t.Helper()
		clear(turns)
		for range batches {
			batch := d.nextBatch(limit)
			if len(batch) > limit {
				t.Errorf("a batch: got %d servers, want at most %d", len(batch), limit)
			}
			for _, s := range batch {
				turns[s]++
			}
		}
		for s, n := range turns {
			if n != 1 {
				t.Errorf("turns of %v in a round: got %d, want 1", s, n)
			}
		}
		if len(turns) != want || len(d.round) != 0 {
			t.Errorf("servers of a round: got %d and %d more, want %d", len(turns), len(d.round), want)
		}
	}
	first := d.nextBatch(limit)
	d.of.add(server(5000), key{})
	round(servers-len(first), 2)
	round(servers+1, 3)
}
