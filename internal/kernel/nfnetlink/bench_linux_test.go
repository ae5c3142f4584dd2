package nfnetlink

import (
	"fmt"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const benchElements = 100_000

// BenchmarkEncode builds a transaction of 100,000 elements of 16 + 8 bytes.
func BenchmarkEncode(b *testing.B) {
	table := Table{Family: IPv4, Name: "vip"}
	var batch Batch
	b.ReportAllocs()
	for b.Loop() {
		batch.Reset()
		if fill(&batch, table, span{0, benchElements}, 1<<30) != benchElements {
			b.Fatal("the batch is not full")
		}
	}
	b.SetBytes(int64(batch.Len()))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchElements, "ns/element")
}

// BenchmarkLoad fills an empty set with 100,000 elements in one transaction, with and
// without a size.
func BenchmarkLoad(b *testing.B) {
	for _, size := range []uint32{0, bigSet().Size} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			c := openInNamespace(b)
			table := Table{Family: IPv4, Name: "vip"}
			set := *bigSet()
			set.Size = size
			var batch, remove Batch
			remove.DelTable(table)
			batch.AddTable(table)
			batch.AddSet(table, &set)
			fill(&batch, table, span{0, benchElements}, c.max)
			b.ReportAllocs()
			for b.Loop() {
				commit(b, c, &batch)
				b.StopTimer()
				commit(b, c, &remove)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkReplaceOne changes one element of 100,000: it deletes and adds the element in
// one transaction.
func BenchmarkReplaceOne(b *testing.B) {
	c := openInNamespace(b)
	table := Table{Family: IPv4, Name: "vip"}
	load(b, c, table, benchElements)
	var batch Batch
	var key, data [16]byte
	bigKey(key[:], data[:8], benchElements/2)
	b.ReportAllocs()
	for b.Loop() {
		batch.Reset()
		w := batch.Elements(OpDelete, table, bigSet().Name)
		w.Key(key[:])
		data[7]++ // padding, which the kernel keeps; any change is enough
		w = batch.Elements(OpAdd, table, bigSet().Name)
		w.KeyData(key[:], data[:8])
		commit(b, c, &batch)
	}
}

// BenchmarkCommitEmpty commits an empty transaction.
func BenchmarkCommitEmpty(b *testing.B) {
	c := openInNamespace(b)
	var batch Batch
	b.ReportAllocs()
	ctx := b.Context()
	for b.Loop() {
		testenv.NoError(b, c.Commit(ctx, &batch))
	}
}

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

// BenchmarkDecode measures the part of a dump outside of the kernel: the message is in
// the buffer.
func BenchmarkDecode(b *testing.B) {
	var batch Batch
	const n = 500
	fill(&batch, Table{Family: IPv4, Name: "vip"}, span{0, n}, 1<<30)
	a := attrs(batch.at(1)[headerLen:])
	var e Element
	got := 0
	each := func(e *Element) error { got += len(e.Key) / 16; return nil }
	b.ReportAllocs()
	for b.Loop() {
		testenv.NoError(b, eachElement(a.Find(3), &e, each))
	}
	if got != n*b.N {
		b.Fatalf("decoded elements: got %d, want %d", got, n*b.N)
	}
	b.SetBytes(int64(len(a)))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
}
