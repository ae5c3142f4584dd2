package allocator_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// fill makes a pool of a range in memory, and allocates a number of keys.
func fill(b *testing.B, text string, used uint64) (*allocator.Pool, allocator.Request) {
	b.Helper()
	c := config(b, text)
	request := next(allocator.Port)
	if c.Prefix.IsValid() {
		request = next(allocator.AddrKey(c.Prefix.Addr()).Kind())
	}
	p := poolOf(b, c)
	for used > 0 {
		count := min(used, allocator.MaxKeys)
		_, err := p.Allocate(b.Context(), "filler", allocator.Request{Kind: request.Kind, Count: int(count)})
		testenv.NoError(b, err)
		used -= count
	}
	return p, request
}

func pairs(b *testing.B, p *allocator.Pool, request allocator.Request) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		claims, err := p.Allocate(b.Context(), "default/web", request)
		if err == nil {
			err = p.Release(b.Context(), claims...)
		}
		testenv.NoError(b, err)
	}
}

// BenchmarkPair allocates and releases one key of a range that is filled to a degree. 100 %
// means all keys but one.
func BenchmarkPair(b *testing.B) {
	for _, text := range []string{"10.96.0.0/24", "10.96.0.0/16", "10.96.0.0/12", "30000-32767"} {
		for _, percent := range []uint64{0, 50, 100} {
			b.Run(fmt.Sprintf("%s/%d%%", text, percent), func(b *testing.B) {
				r, err := allocator.NewRange(config(b, text))
				testenv.NoError(b, err)
				p, request := fill(b, text, min(r.Size()*percent/100, r.Size()-1))
				pairs(b, p, request)
			})
		}
	}
}

// BenchmarkFill allocates every key of a range, one by one.
func BenchmarkFill(b *testing.B) {
	for b.Loop() {
		p, request := fill(b, "10.96.0.0/16", 0)
		for range p.Ranges()[0].Stats.Size {
			_, err := p.Allocate(b.Context(), "filler", request)
			testenv.NoError(b, err)
		}
	}
}

// BenchmarkMany allocates and releases one address of a large range with many others, and
// reports the memory that each of these takes.
func BenchmarkMany(b *testing.B) {
	const existing = 1_000_000
	for _, text := range []string{"10.0.0.0/8", "fd00::/64"} {
		b.Run(text, func(b *testing.B) {
			before := heap()
			p, request := fill(b, text, existing)
			perKey := float64(heap()-before) / existing
			pairs(b, p, request)
			b.ReportMetric(perKey, "B/key")
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
