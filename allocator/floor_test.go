package allocator

import (
	"fmt"
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

// BenchmarkWithoutOwners is BenchmarkPair on a range that does not store owners. The
// difference is the cost of storing them; with millions of owners that is mostly reads
// of main memory.
func BenchmarkWithoutOwners(b *testing.B) {
	for _, text := range []string{"10.96.0.0/12", "10.0.0.0/8", "fd00::/108"} {
		b.Run(fmt.Sprint(text, "/50%"), func(b *testing.B) {
			c, err := ParseConfig(text)
			testenv.NoError(b, err)
			r, err := newCore(c, false)
			testenv.NoError(b, err)
			for range r.size / 2 {
				i, _ := r.pick()
				r.take(i, taken)
			}
			for b.Loop() {
				i, _ := r.pick()
				r.take(i, taken)
				r.put(i)
			}
		})
	}
}
