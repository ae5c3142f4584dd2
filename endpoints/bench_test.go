package endpoints

import (
	"fmt"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const manyServices = 10_000

// makeSlice returns a slice of a Service with n endpoints, in no particular
// order, on 1,000 nodes. Addresses start at the number first.
func makeSlice(service, slice string, first, n int) *discoveryv1.EndpointSlice {
	s := objects.Slice(slice, service, objects.Many(n, func(i int) string {
		a := first + i*7%n
		return fmt.Sprintf("10.%d.%d.%d R @node-%04d.example.org", a>>16&255, a>>8&255, a&255, a%1000)
	})...)
	s.Labels["app"] = service
	return s
}

// flip returns a copy of a slice with one endpoint that is no longer ready.
func flip(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	return objects.Edited(s, func(s *discoveryv1.EndpointSlice) { s.Endpoints[len(s.Endpoints)/2].Conditions.Ready = new(false) })
}

// without returns a copy of a slice with one endpoint less.
func without(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s = s.DeepCopy()
	half := len(s.Endpoints) / 2
	s.Endpoints = append(s.Endpoints[:half], s.Endpoints[half+1:]...)
	return s
}

func httpKey(service string) ServicePortName {
	return ServicePortName{
		NamespacedName: types.NamespacedName{Namespace: "default", Name: service},
		Port:           "http",
		Protocol:       v1.ProtocolTCP,
		Family:         v1.IPv4Protocol,
	}
}

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

func serviceSlice(i int) *discoveryv1.EndpointSlice {
	return makeSlice(serviceName(i), serviceName(i)+"-x7k2p", i*10+1, 10)
}

// manyCache returns a Cache with 10,000 Services of 10 endpoints each.
func manyCache(tb testing.TB) *Cache {
	tb.Helper()
	c := NewCache(View{NodeName: "node-0001.example.org", Zone: "a"}, nil)
	for i := range manyServices {
		must(tb, c.Update(serviceSlice(i)))
	}
	return c
}

// bigCache adds one Service of 5,000 endpoints in 50 slices to manyCache, and returns one of
// these slices.
func bigCache(tb testing.TB) (*Cache, *discoveryv1.EndpointSlice) {
	tb.Helper()
	c := manyCache(tb)
	var s *discoveryv1.EndpointSlice
	for i := range 50 {
		x := makeSlice("big", fmt.Sprintf("big-%d", i), i*100+1, 100)
		must(tb, c.Update(x))
		if i == 25 {
			s = x
		}
	}
	return c, s
}

// alternate updates two versions of a slice in turn, and selects, as a tracker does.
func alternate(b *testing.B, c *Cache, key ServicePortName, even, odd *discoveryv1.EndpointSlice) {
	b.Helper()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s := even
		if i&1 == 1 {
			s = odd
		}
		testenv.NoError(b, c.Update(s))
		if sel := c.Select(key, Policy{Cluster: true}); !sel.Any {
			b.Fatal("no endpoints")
		}
	}
}

func BenchmarkUpdateOneOfManyServices(b *testing.B) {
	c, s := manyCache(b), serviceSlice(77)
	alternate(b, c, httpKey(serviceName(77)), s, flip(s))
}

func BenchmarkUpdateSame(b *testing.B) {
	c, s := manyCache(b), serviceSlice(77)
	alternate(b, c, httpKey(serviceName(77)), s, s)
}

func BenchmarkUpdateBigService(b *testing.B) {
	c, s := bigCache(b)
	alternate(b, c, httpKey("big"), without(s), s)
}

// BenchmarkUpdateBigServiceUnready also copies in Select, every other time.
func BenchmarkUpdateBigServiceUnready(b *testing.B) {
	c, s := bigCache(b)
	alternate(b, c, httpKey("big"), flip(s), s)
}

// BenchmarkCopyBigService is the floor of the two above: one list of 5,000 is
// made and filled, and nothing else.
func BenchmarkCopyBigService(b *testing.B) {
	c, _ := bigCache(b)
	list := c.Endpoints(httpKey("big"))
	var copied []*Endpoint
	b.ReportAllocs()
	for b.Loop() {
		copied = append(make([]*Endpoint, 0, len(list)), list...)
	}
	runtime.KeepAlive(copied)
	runtime.KeepAlive(c)
}

func BenchmarkUpdateBigServiceSame(b *testing.B) {
	c, s := bigCache(b)
	alternate(b, c, httpKey("big"), s, s)
}

func BenchmarkFillManyServices(b *testing.B) {
	objects := make([]*discoveryv1.EndpointSlice, manyServices)
	for i := range objects {
		objects[i] = serviceSlice(i)
	}
	b.ReportAllocs()
	for b.Loop() {
		c := NewCache(View{NodeName: "node-0001.example.org"}, nil)
		for _, s := range objects {
			testenv.NoError(b, c.Update(s))
		}
	}
}

func BenchmarkSetViewManyServices(b *testing.B) {
	c := manyCache(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.SetView(View{NodeName: fmt.Sprintf("node-%04d.example.org", i%1000)})
	}
}

// BenchmarkLiveHeap reports the memory of a Cache of 10,000 Services.
func BenchmarkLiveHeap(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		c := manyCache(b)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
		runtime.KeepAlive(c)
	}
}
