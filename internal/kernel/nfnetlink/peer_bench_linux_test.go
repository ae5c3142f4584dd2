package nfnetlink

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/nftables"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const peerElements = 10_000

// BenchmarkBesideLibrary adds a table with a set of 10,000 addresses in one transaction, by this package
// and by github.com/google/nftables. Removing the table does not count.
func BenchmarkBesideLibrary(b *testing.B) {
	elements := make([]nftables.SetElement, peerElements)
	for i := range elements {
		elements[i].Key = binary.BigEndian.AppendUint32(nil, 10<<24+uint32(i))
	}
	b.Run("package=nfnetlink", func(b *testing.B) {
		c := openInNamespace(b)
		table := Table{Family: IPv4, Name: "vip"}
		var add, remove Batch
		remove.DelTable(table)
		b.ReportAllocs()
		for b.Loop() {
			add.Reset()
			add.AddTable(table)
			add.AddSet(table, &Set{Name: "addresses", Key: []Selector{SourceAddr}, Size: peerElements})
			w := add.Elements(OpAdd, table, "addresses")
			for i := range elements {
				w.Key(elements[i].Key)
			}
			commit(b, c, &add)
			b.StopTimer()
			commit(b, c, &remove)
			b.StartTimer()
		}
	})
	b.Run("package=google-nftables", func(b *testing.B) {
		enterNamespace(b)
		c, err := nftables.New(nftables.AsLasting())
		testenv.NoError(b, err)
		defer c.CloseLasting() //nolint:errcheck // the namespace ends
		b.ReportAllocs()
		for b.Loop() {
			table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "vip"})
			set := &nftables.Set{Table: table, Name: "addresses", KeyType: nftables.TypeIPAddr, Size: peerElements}
			testenv.NoError(b, c.AddSet(set, elements))
			testenv.NoError(b, c.Flush())
			b.StopTimer()
			c.DelTable(table)
			testenv.NoError(b, c.Flush())
			b.StartTimer()
		}
	})
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
