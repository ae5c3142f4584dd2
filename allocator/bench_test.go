package allocator_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testenv"
)

// fill allocates all but the given number of keys, at most a million.
func fill(b *testing.B, r *allocator.Range, used uint64) {
	b.Helper()
	if _, err := r.AllocateN("filler", int(used)); err != nil {
		b.Fatal(err)
	}
}

func pairs(b *testing.B, r *allocator.Range) {
	b.Helper()
	pair(b, r) // The first pair allocates the table of owners.
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

// BenchmarkPair allocates and releases one key of a range that is filled to a
// degree.
func BenchmarkPair(b *testing.B) {
	for _, text := range []string{"10.96.0.0/24", "10.96.0.0/20", "10.96.0.0/16", "10.96.0.0/12", "10.0.0.0/8", "fd00::/108", "30000-32767"} {
		for _, percent := range []float64{0, 50, 99, 99.9, 100} {
			b.Run(fmt.Sprintf("%s/%v%%", text, percent), func(b *testing.B) {
				r := newRange(b, text)
				size := r.Stats().Size
				// 100 % means all keys but one.
				fill(b, r, min(uint64(float64(size)*percent/100), size-1))
				pairs(b, r)
			})
		}
	}
}

// BenchmarkChurn releases keys that were allocated long ago, each by an owner of its
// own, and allocates others, so that none of the memory is in the processor's caches.
func BenchmarkChurn(b *testing.B) {
	for _, text := range []string{"10.96.0.0/16", "10.96.0.0/12", "10.0.0.0/8"} {
		b.Run(text+"/50%", func(b *testing.B) {
			r := newRange(b, text)
			half := r.Stats().Size / 2
			old := make([]allocator.Key, min(half, 1<<20))
			names := make([]allocator.Owner, len(old))
			fill(b, r, half-uint64(len(old)))
			for i := range old {
				names[i] = allocator.Owner(fmt.Sprint("default/web-", i))
				key, err := r.AllocateNext(names[i])
				testenv.NoError(b, err)
				old[i] = key
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % len(old) {
				err := r.Release(names[i], old[i])
				if err == nil {
					old[i], err = r.AllocateNext(names[i])
				}
				testenv.NoError(b, err)
			}
		})
	}
}

// BenchmarkPairParallel does the same from all processors.
func BenchmarkPairParallel(b *testing.B) {
	r := newRange(b, "10.96.0.0/16")
	fill(b, r, 32_000)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			key, err := r.AllocateNext("default/web")
			if err == nil {
				err = r.Release("default/web", key)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkFill allocates every key of a range, one by one.
func BenchmarkFill(b *testing.B) {
	for _, text := range []string{"10.96.0.0/16", "10.96.0.0/12"} {
		b.Run(text, func(b *testing.B) {
			for b.Loop() {
				r := newRange(b, text)
				for range r.Stats().Size {
					if _, err := r.AllocateNext("filler"); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkSparse allocates and releases one address of a /64 with many others,
// and reports the memory that each of these takes.
func BenchmarkSparse(b *testing.B) {
	for _, existing := range []uint64{0, 100_000, 1_000_000} {
		b.Run(fmt.Sprint("existing=", existing), func(b *testing.B) {
			before := heap()
			r := newRange(b, "fd00::/64")
			fill(b, r, existing)
			perKey := float64(heap()-before) / float64(max(existing, 1))
			pairs(b, r)
			if existing > 0 {
				b.ReportMetric(perKey, "B/key")
			}
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
