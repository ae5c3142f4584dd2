package peer_test

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// BenchmarkRange allocates and releases one address of a range that is filled to a degree:
// with a pool of allocator in memory, and with the bitmap of Kubernetes in memory. The processor time, with
// garbage collection, does not depend on other processes on the machine.
func BenchmarkRange(b *testing.B) {
	for _, text := range []string{"10.96.0.0/24", "10.96.0.0/20", "10.96.0.0/16", "10.96.0.0/12"} {
		for _, percent := range []float64{0, 50, 99.9, 100} {
			name := fmt.Sprintf("%s/%v%%/", text, percent)
			b.Run(name+"vipkit", func(b *testing.B) { ourPairs(b, text, percent) })
			b.Run(name+"kubernetes", func(b *testing.B) { theirPairs(b, text, percent) })
		}
	}
}

// filled is how many keys of a range are in use; 100 % means all but one.
func filled(size int, percent float64) int { return min(int(float64(size)*percent/100), size-1) }

func ourPairs(b *testing.B, text string, percent float64) {
	c := allocator.Config{Prefix: netip.MustParsePrefix(text)}
	p, err := allocator.NewPool(allocator.NewMemory(allocator.State{}, nil), allocator.PoolOptions{Ranges: []allocator.Config{c}})
	testenv.NoError(b, err)
	for left := filled(int(p.Ranges()[0].Stats.Size), percent); left > 0; left -= allocator.MaxKeys {
		_, err := p.Allocate(b.Context(), "filler", allocator.Request{Kind: allocator.IPv4, Count: min(left, allocator.MaxKeys)})
		testenv.NoError(b, err)
	}
	loop(b, func() error {
		claims, err := p.Allocate(b.Context(), "default/web", allocator.Request{Kind: allocator.IPv4})
		if err == nil {
			err = p.Release(b.Context(), claims...)
		}
		return err
	})
}

func theirPairs(b *testing.B, text string, percent float64) {
	_, prefix, err := net.ParseCIDR(text)
	testenv.NoError(b, err)
	r, err := ipallocator.NewInMemory(prefix)
	testenv.NoError(b, err)
	for range filled(r.Free(), percent) {
		if _, err := r.AllocateNext(); err != nil {
			b.Fatal(err)
		}
	}
	loop(b, func() error {
		address, err := r.AllocateNext()
		if err == nil {
			err = r.Release(address)
		}
		return err
	})
}

func loop(b *testing.B, do func() error) {
	b.Helper()
	before := processorTime(b)
	for b.Loop() {
		testenv.NoError(b, do())
	}
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	testenv.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
