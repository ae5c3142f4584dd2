package ipset

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

const benchEntries = 100_000

func report(b *testing.B) {
	b.ReportMetric(benchEntries*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}

// BenchmarkAdd adds entries to a set that is empty and grows with them, and to one that has them.
// The program ipset does the same in one run of "restore".
func BenchmarkAdd(b *testing.B) {
	b.Run("growing", func(b *testing.B) { benchmarkAdd(b, true) })
	b.Run("existing", func(b *testing.B) { benchmarkAdd(b, false) })
}

func benchmarkAdd(b *testing.B, isNew bool) {
	set := Set{Name: "a", Type: HashIPPort, MaxElem: 1 << 24}
	ops := additions("a", numbered(benchEntries)...)
	var text strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&text, "add a %v\n", o.Entry)
	}
	program := netnstest.Program(b, "ipset")
	for name, add := range map[string]func(w world){
		"vipkit": func(w world) { w.do(b, ops...) },
		"ipset": func(w world) {
			if _, err := netnstest.Run(b, w.ns, text.String(), program, "-exist", "restore"); err != nil {
				b.Fatal(err)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b)
			w.create(b, set)
			if !isNew {
				w.do(b, ops...)
			}
			b.ReportAllocs()
			for b.Loop() {
				add(w)
				if !isNew {
					continue
				}
				b.StopTimer()
				if err := w.Destroy(b.Context(), "a"); err != nil { // keeps no table
					b.Fatal(err)
				}
				w.create(b, set)
				b.StartTimer()
			}
			report(b)
		})
	}
}

// BenchmarkEntries lists a set.
func BenchmarkEntries(b *testing.B) {
	w := newWorld(b)
	w.create(b, Set{Name: "a", Type: HashIPPort, MaxElem: 1 << 24})
	w.do(b, additions("a", numbered(benchEntries)...)...)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		err := w.Entries(b.Context(), "a", func(Entry) error {
			n++
			return nil
		})
		if err != nil || n != benchEntries {
			b.Fatalf("got %d entries, error %v, want %d", n, err, benchEntries)
		}
	}
	report(b)
}

// BenchmarkSets describes a large set, whose entries the kernel counts.
func BenchmarkSets(b *testing.B) {
	w := newWorld(b)
	w.create(b, Set{Name: "a", Type: HashIPPort, MaxElem: 1 << 24})
	w.do(b, additions("a", numbered(benchEntries)...)...)
	for b.Loop() {
		if got := w.info(b, "a").Entries; got != benchEntries {
			b.Fatalf("got %d entries, want %d", got, benchEntries)
		}
	}
}

// BenchmarkOne adds one entry and deletes it, in one call.
func BenchmarkOne(b *testing.B) {
	w := newWorld(b)
	w.create(b, Set{Name: "a", Type: HashIPPort, MaxElem: 1 << 24})
	w.do(b, additions("a", numbered(benchEntries)...)...)
	one := Entry{Addr: addr("192.0.2.1"), Protocol: 6, Port: 80}
	ops := append(additions("a", one), deletions("a", one)...)
	b.ReportAllocs()
	for b.Loop() {
		w.do(b, ops...)
	}
}
