package pmap_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/pmap"
)

// portName has the shape of the keys that the package is made for: five
// strings, most of which have a common prefix.
type portName struct{ namespace, name, port, protocol, family string }

func (n portName) Compare(o portName) int {
	if c := strings.Compare(n.namespace, o.namespace); c != 0 {
		return c
	}
	if c := strings.Compare(n.name, o.name); c != 0 {
		return c
	}
	return cmp.Or(
		strings.Compare(n.port, o.port),
		strings.Compare(n.protocol, o.protocol),
		strings.Compare(n.family, o.family),
	)
}

type port struct{ number int }

func portNames(n int) []portName {
	names := make([]portName, n)
	for i := range names {
		names[i] = portName{
			namespace: fmt.Sprintf("namespace-%d", i%50),
			name:      fmt.Sprintf("service-%d", i/2),
			port:      "http",
			protocol:  "TCP",
			family:    [2]string{"IPv4", "IPv6"}[i%2],
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(n, func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

func load(names []portName, p *port) pmap.Map[portName, *port] {
	e := pmap.New[portName, *port]().Edit()
	for _, n := range names {
		e.Set(n, p)
	}
	return e.Map()
}

// forSizes runs a benchmark on maps of several sizes, all of whose values are
// ports[0].
func forSizes(b *testing.B, f func(b *testing.B, names []portName, m pmap.Map[portName, *port], ports [2]*port)) {
	for _, n := range []int{1_000, 10_000, 50_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			names, ports := portNames(n), [2]*port{{0}, {1}}
			m := load(names, ports[0])
			b.ReportAllocs()
			f(b, names, m, ports)
		})
	}
}

func BenchmarkGet(b *testing.B) {
	forSizes(b, func(b *testing.B, names []portName, m pmap.Map[portName, *port], _ [2]*port) {
		for i := 0; b.Loop(); i++ {
			m.Get(names[i%len(names)])
		}
	})
}

func BenchmarkSet(b *testing.B) {
	forSizes(b, func(b *testing.B, names []portName, m pmap.Map[portName, *port], ports [2]*port) {
		for i := 0; b.Loop(); i++ {
			m = m.With(names[i%len(names)], ports[(i/len(names)+1)%2])
		}
	})
}

// BenchmarkSetDiff measures a change and a Diff by one consumer.
func BenchmarkSetDiff(b *testing.B) { forSizes(b, setDiff) }

// BenchmarkSetDiffHot changes the same few keys again and again: all data is in the
// CPU's caches.
func BenchmarkSetDiffHot(b *testing.B) {
	forSizes(b, func(b *testing.B, names []portName, m pmap.Map[portName, *port], ports [2]*port) {
		setDiff(b, names[:16], m, ports)
	})
}

func setDiff(b *testing.B, names []portName, m pmap.Map[portName, *port], ports [2]*port) {
	b.Helper()
	changes, i := 0, 0
	for ; b.Loop(); i++ {
		old := m
		m = m.With(names[i%len(names)], ports[(i/len(names)+1)%2])
		for range m.Diff(old) {
			changes++
		}
	}
	if changes != i {
		b.Fatalf("found %d changes, want %d", changes, i)
	}
}

// BenchmarkAddRemove deletes a key and puts it back, with a Diff after each.
func BenchmarkAddRemove(b *testing.B) {
	forSizes(b, func(b *testing.B, names []portName, m pmap.Map[portName, *port], ports [2]*port) {
		changes, i := 0, 0
		for ; b.Loop(); i++ {
			without := m.Without(names[i%len(names)])
			for range without.Diff(m) {
				changes++
			}
			m = without.With(names[i%len(names)], ports[0])
			for range m.Diff(without) {
				changes++
			}
		}
		if changes != 2*i {
			b.Fatalf("found %d changes, want %d", changes, 2*i)
		}
	})
}

func BenchmarkDiff(b *testing.B) {
	for _, d := range []int{0, 1, 10, 100, 1_000} {
		b.Run(fmt.Sprintf("n=50000/changes=%d", d), func(b *testing.B) {
			names, ports := portNames(50_000), [2]*port{{0}, {1}}
			old := load(names, ports[0])
			e := old.Edit()
			for _, n := range names[:d] {
				e.Set(n, ports[1])
			}
			m := e.Map()
			b.ReportAllocs()
			for b.Loop() {
				changes := 0
				for range m.Diff(old) {
					changes++
				}
				if changes != d {
					b.Fatalf("found %d changes, want %d", changes, d)
				}
			}
		})
	}
}

func BenchmarkAll(b *testing.B) {
	forSizes(b, func(b *testing.B, names []portName, m pmap.Map[portName, *port], _ [2]*port) {
		for b.Loop() {
			seen := 0
			for range m.All() {
				seen++
			}
			if seen != len(names) {
				b.Fatalf("saw %d keys, want %d", seen, len(names))
			}
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	forSizes(b, func(b *testing.B, names []portName, _ pmap.Map[portName, *port], ports [2]*port) {
		for b.Loop() {
			load(names, ports[0])
		}
	})
}

// BenchmarkLoadSorted loads keys in the order in which a List call returns them.
func BenchmarkLoadSorted(b *testing.B) {
	forSizes(b, func(b *testing.B, names []portName, m pmap.Map[portName, *port], ports [2]*port) {
		names = names[:0]
		for n := range m.All() {
			names = append(names, n)
		}
		for b.Loop() {
			load(names, ports[0])
		}
	})
}
