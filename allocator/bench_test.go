package allocator_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// fill allocates a number of keys.
func fill(b *testing.B, r *allocator.Range, used uint64) {
	b.Helper()
	if _, err := r.AllocateN("filler", int(used)); err != nil {
		b.Fatal(err)
	}
}

func pairs(b *testing.B, r *allocator.Range) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		pair(b, r)
	}
}

func pair(b *testing.B, r *allocator.Range) {
	key, err := r.AllocateNext("default/web")
	if err == nil {
		err = r.Release("default/web", key)
	}
	testenv.NoError(b, err)
}

// BenchmarkPair allocates and releases one key of a range that is filled to a degree. 100 %
// means all keys but one.
func BenchmarkPair(b *testing.B) {
	for _, text := range []string{"10.96.0.0/24", "10.96.0.0/16", "10.96.0.0/12", "30000-32767"} {
		for _, percent := range []uint64{0, 50, 100} {
			b.Run(fmt.Sprintf("%s/%d%%", text, percent), func(b *testing.B) {
				r := newRange(b, text)
				size := r.Stats().Size
				fill(b, r, min(size*percent/100, size-1))
				pairs(b, r)
			})
		}
	}
}

// BenchmarkFill allocates every key of a range, one by one.
func BenchmarkFill(b *testing.B) {
	for b.Loop() {
		r := newRange(b, "10.96.0.0/16")
		for range r.Stats().Size {
			if _, err := r.AllocateNext("filler"); err != nil {
				b.Fatal(err)
			}
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
			r := newRange(b, text)
			fill(b, r, existing)
			perKey := float64(heap()-before) / existing
			pairs(b, r)
			b.ReportMetric(perKey, "B/key")
			runtime.KeepAlive(r)
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

// BenchmarkPool reserves and releases one address in memory.
func BenchmarkPool(b *testing.B) {
	for _, existing := range []int{0, 20_000} {
		b.Run(fmt.Sprint("existing=", existing), func(b *testing.B) {
			p := newPool(b, newMemory(), "10.96.0.0/16")
			if existing > 0 {
				mustReserve(b, p, "filler", allocator.Request{Kind: allocator.IPv4, Count: existing})
			}
			b.ReportAllocs()
			for b.Loop() {
				claims := mustReserve(b, p, "default/web", next(allocator.IPv4))
				testenv.NoError(b, p.Release(b.Context(), claims...))
			}
		})
	}
}
