package nfnetlink

import (
	"fmt"
	"testing"
)

// BenchmarkDump reads elements of 16 + 8 bytes from the kernel. The cost of each grows
// with their number.
func BenchmarkDump(b *testing.B) {
	for _, elements := range []int{75_000, 150_000, 300_000} {
		b.Run(fmt.Sprintf("elements=%d", elements), func(b *testing.B) {
			c := openInNamespace(b)
			table := Table{Family: IPv4, Name: "vip"}
			load(b, c, table, elements)
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				err := c.Elements(b.Context(), table, bigSet().Name, Visitor[Element]{
					Begin: func() { n = 0 },
					Each:  func(e *Element) error { n += len(e.Key) / 16; return nil },
				})
				if err != nil || n != elements {
					b.Fatalf("dump: got %d elements, error %v, want %d", n, err, elements)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(elements), "ns/element")
		})
	}
}
