package proxy

import (
	"fmt"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

func manyService(i int) *v1.Service {
	return apiService(fmt.Sprintf("service-%05d", i), fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255), objects.Created(int64(i)))
}

// manySlice is the slice of one Service with n endpoints, of which the middle
// one has another address in each version.
func manySlice(i, n, version int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("service-%05d", i)
	s := apiSlice(name+"-x7k2p", name)
	for e := range n {
		a := i*n + e
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", a>>16&63, a>>8&255, a&255)},
			NodeName:  new(fmt.Sprintf("node-%04d.example.org", a%1000)),
		})
	}
	s.Endpoints[n/2].Addresses[0] = fmt.Sprintf("172.16.%d.%d", version, i&255)
	return s
}

// loadedTracker returns a tracker with this many Services of 10 endpoints each.
func loadedTracker(tb testing.TB, services int) (*ServiceChangeTracker, Snapshot) {
	tb.Helper()
	tr := newTestTracker()
	for i := range services {
		tr.UpdateService(manyService(i))
		tr.UpdateEndpointSlice(manySlice(i, 10, 0))
	}
	return tr, newest(tb, tr)
}

// change updates a slice and returns the next snapshot, which must have one change.
func change(tb testing.TB, tr *ServiceChangeTracker, last Snapshot, s *discoveryv1.EndpointSlice) Snapshot {
	tr.UpdateEndpointSlice(s)
	next, err := tr.Next(tb.Context(), last)
	if err != nil {
		tb.Fatalf("Next: got error %v, want a snapshot", err)
	}
	if n := countChanges(last, next); n != 1 {
		tb.Fatalf("got %d changes, want 1", n)
	}
	return next
}

func benchmarkSliceEvent(b *testing.B, services int) {
	b.Helper()
	tr, last := loadedTracker(b, services)
	versions := []*discoveryv1.EndpointSlice{manySlice(services/2, 10, 1), manySlice(services/2, 10, 2)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		last = change(b, tr, last, versions[i&1])
	}
}

func BenchmarkSliceEvent(b *testing.B) {
	for _, services := range []int{10_000, 50_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) { benchmarkSliceEvent(b, services) })
	}
}

func BenchmarkUnchangedSlice(b *testing.B) {
	tr, _ := loadedTracker(b, 10_000)
	s := manySlice(77, 10, 0)
	b.ReportAllocs()
	for b.Loop() {
		tr.UpdateEndpointSlice(s)
	}
}

func BenchmarkUnchangedService(b *testing.B) {
	tr, _ := loadedTracker(b, 10_000)
	s := manyService(77)
	b.ReportAllocs()
	for b.Loop() {
		tr.UpdateService(s)
	}
}

// BenchmarkLoad is a start with 10,000 Services of 10 endpoints each, up to the
// first snapshot.
func BenchmarkLoad(b *testing.B) {
	const count = 10_000
	var services []*v1.Service
	var list []*discoveryv1.EndpointSlice
	for i := range count {
		services = append(services, manyService(i))
		list = append(list, manySlice(i, 10, 0))
	}
	b.ReportAllocs()
	for b.Loop() {
		tr := newTestTracker()
		for i := range services {
			tr.UpdateService(services[i])
			tr.UpdateEndpointSlice(list[i])
		}
		if s := newest(b, tr); s.Len() != count {
			b.Fatalf("got %d ports, want %d", s.Len(), count)
		}
	}
}

// bigTracker returns a tracker with one Service of 5,000 endpoints in 50 slices, and two
// versions of one of these.
func bigTracker(tb testing.TB) (*ServiceChangeTracker, Snapshot, [2]*discoveryv1.EndpointSlice) {
	tb.Helper()
	tr := newTestTracker()
	tr.UpdateService(apiService("big", "10.96.0.1"))
	part := func(i, version int) *discoveryv1.EndpointSlice {
		s := manySlice(i, 100, version)
		s.Name, s.Labels[discoveryv1.LabelServiceName] = fmt.Sprint("big-", i), "big"
		return s
	}
	for i := range 50 {
		tr.UpdateEndpointSlice(part(i, 0))
	}
	return tr, newest(tb, tr), [2]*discoveryv1.EndpointSlice{part(25, 1), part(25, 2)}
}

func BenchmarkBigService(b *testing.B) {
	tr, last, versions := bigTracker(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		last = change(b, tr, last, versions[i&1])
	}
}

// TestAllocations limits the allocations, whose numbers do not depend on the machine.
func TestAllocations(t *testing.T) {
	tr, last := loadedTracker(t, 10_000)
	same, service := manySlice(77, 10, 0), manyService(77)
	versions := []*discoveryv1.EndpointSlice{manySlice(5000, 10, 1), manySlice(5000, 10, 2)}
	i := 0
	for _, tc := range []struct {
		name string
		most float64
		do   func()
	}{
		{"unchanged slice", 0, func() { tr.UpdateEndpointSlice(same) }},
		{"unchanged Service", 12, func() { tr.UpdateService(service) }},
		{"replaced endpoint, with its list of changes", 60, func() { i++; last = change(t, tr, last, versions[i&1]) }},
	} {
		if got := testing.AllocsPerRun(200, tc.do); got > tc.most {
			t.Errorf("%s: got %v allocations, want at most %v", tc.name, got, tc.most)
		} else {
			t.Logf("%s: %v allocations", tc.name, got)
		}
	}
}

// TestChangeCostsTheSameAtAnySize: ten times the Services, nearly the same
// allocations.
func TestChangeCostsTheSameAtAnySize(t *testing.T) {
	cost := func(services int) float64 {
		tr, last := loadedTracker(t, services)
		versions := []*discoveryv1.EndpointSlice{manySlice(services/2, 10, 1), manySlice(services/2, 10, 2)}
		i := 0
		return testing.AllocsPerRun(200, func() { i++; last = change(t, tr, last, versions[i&1]) })
	}
	small, large := cost(1000), cost(10_000)
	t.Logf("%v allocations per change with 1,000 Services, %v with 10,000", small, large)
	if large > small+30 {
		t.Errorf("got %v allocations per change with 10,000 Services and %v with 1,000, want at most 30 more", large, small)
	}
}

// liveHeap returns the bytes that are in use after a collection.
func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestHeap limits the memory that a tracker and its snapshot use.
func TestHeap(t *testing.T) {
	const most = 25 << 20
	before := liveHeap()
	tr, s := loadedTracker(t, 10_000)
	got := liveHeap() - before
	runtime.KeepAlive(tr)
	if s.Len() != 10_000 {
		t.Fatalf("got %d ports, want 10000", s.Len())
	}
	t.Logf("10,000 Services of 10 endpoints use %.1f MiB", float64(got)/(1<<20))
	if got > most {
		t.Errorf("10,000 Services of 10 endpoints use %d bytes, want at most %d", got, most)
	}
}
