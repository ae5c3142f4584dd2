package scale

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// kernel is where a backend writes.
type kernel struct {
	ns *netns.NS
	// open makes a backend, as a fresh process does.
	open func() (proxy.Backend, error)
	// calls returns the number of calls so far; nil if nothing counts them.
	calls func() int
}

// linux returns a function that makes an empty network namespace for a backend.
func linux(open func() (proxy.Backend, error)) func(b *testing.B) kernel {
	return func(b *testing.B) kernel { return kernel{ns: netnstest.NewNS(b), open: open} }
}

// windows makes an HNS without endpoints.
func windows(b *testing.B) kernel {
	hns := hcntest.New(hcn.Version{Major: 16}, netip.MustParseAddr("192.0.2.1"))
	hns.AddNetwork(hcn.Network{Name: "l2bridge0", Type: "L2Bridge"})
	options := kernelspace.Options{
		Network: "l2bridge0", SourceVIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, StateFile: filepath.Join(b.TempDir(), "state"),
	}
	return kernel{
		ns: netnstest.NewNS(b), calls: hns.Total,
		open: func() (proxy.Backend, error) { return kernelspace.New(hns, options) },
	}
}

// BenchmarkBackends measures each backend: everything written from nothing, one endpoint replaced,
// one in each of a thousand Services, and a fresh process that takes over.
func BenchmarkBackends(b *testing.B) {
	b.Run("floor", measureFloor)
	for _, c := range []struct {
		name string
		make func(*testing.B) kernel
	}{
		{"nftables", linux(func() (proxy.Backend, error) { return nftables.New(nftables.Options{}) })},
		{"iptables", linux(func() (proxy.Backend, error) { return iptables.New(iptables.Options{}) })},
		{"userspace", linux(func() (proxy.Backend, error) { return userspace.New(userspace.Options{}) })},
		{"kernelspace", windows},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.Run("cold", func(b *testing.B) { measureCold(b, c.make) })
			b.Run("endpoint", func(b *testing.B) { measureChanges(b, c.make(b), 1) })
			b.Run("thousand", func(b *testing.B) { measureChanges(b, c.make(b), 1000) })
			b.Run("takeover", func(b *testing.B) { measureTakeover(b, c.make(b)) })
		})
	}
}

// world is a cluster of equal Services, with the numbers of their endpoints.
type world struct {
	random    *rand.Rand
	endpoints [][]int
	last      int
	tracker   *proxy.ServiceChangeTracker
	snapshot  proxy.Snapshot
}

func newWorld(b *testing.B) *world {
	w := &world{
		random: rand.New(rand.NewPCG(1, 2)), tracker: proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node"}),
	}
	endpoints := testenv.Count(b, "VIPKIT_ENDPOINTS", 10)
	for i := range testenv.Count(b, "VIPKIT_SERVICES", 1000) {
		w.endpoints = append(w.endpoints, objects.Many(endpoints, func(int) int { w.last++; return w.last }))
		w.tracker.UpdateService(objects.Service(serviceName(i), clusterIP(i).String(), objects.Ports("80")))
		w.tracker.UpdateEndpointSlice(w.slice(i))
	}
	w.tracker.Synced()
	w.next(b)
	return w
}

func serviceName(i int) string { return fmt.Sprintf("scale/service-%d", i) }

func clusterIP(i int) netip.Addr { return address(10<<24 | 64<<16 | uint32(i+1)) }

func endpoint(n int) netip.Addr { return address(10<<24 | 128<<16 | uint32(n)) }

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

func (w *world) slice(i int) *discoveryv1.EndpointSlice {
	_, name, _ := strings.Cut(serviceName(i), "/")
	s := objects.Slice(serviceName(i), name)
	s.Ports = objects.SlicePorts("8080")
	for _, n := range w.endpoints[i] {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{endpoint(n).String()}, NodeName: new("elsewhere")})
	}
	return s
}

// replaceOne gives a Service a new endpoint in the place of one, and returns its slice.
func (w *world) replaceOne(i int) *discoveryv1.EndpointSlice {
	w.last++
	w.endpoints[i][w.random.IntN(len(w.endpoints[i]))] = w.last
	return w.slice(i)
}

// next returns the last snapshot and the one after it.
func (w *world) next(b *testing.B) (old, now proxy.Snapshot) {
	old = w.snapshot
	now, err := w.tracker.Next(b.Context(), old)
	testenv.NoError(b, err)
	w.snapshot = now
	return old, now
}

// start makes a backend and applies a snapshot to whatever is there. The caller closes the backend.
func (k kernel) start(b *testing.B, s proxy.Snapshot) (backend proxy.Backend, end func()) {
	testenv.NoError(b, k.ns.Do(func() (err error) {
		backend, err = k.open()
		return err
	}))
	testenv.NoError(b, backend.Apply(b.Context(), proxy.Snapshot{}, s))
	return backend, func() { testenv.NoError(b, backend.Close()) }
}

func measureCold(b *testing.B, newKernel func(*testing.B) kernel) {
	w := newWorld(b)
	for b.Loop() {
		b.StopTimer()
		k := newKernel(b)
		report := k.meter(b)
		b.StartTimer()
		_, end := k.start(b, w.snapshot)
		b.StopTimer()
		report(1)
		end()
		b.StartTimer()
	}
}

func measureTakeover(b *testing.B, k kernel) {
	_, end := k.start(b, newWorld(b).snapshot)
	end()
	debug.FreeOSMemory() // A fresh process has no other world.
	report := k.meter(b)
	w := newWorld(b)
	for b.Loop() {
		_, end := k.start(b, w.snapshot)
		b.StopTimer()
		end()
		b.StartTimer()
	}
	report(b.N)
}

// measureChanges replaces one endpoint in each of some Services. A duration begins with their
// EndpointSlices.
func measureChanges(b *testing.B, k kernel, services int) {
	w := newWorld(b)
	backend, end := k.start(b, w.snapshot)
	defer end()
	report := k.meter(b)
	var took []time.Duration
	for b.Loop() {
		var changed []*discoveryv1.EndpointSlice
		for _, i := range w.random.Perm(len(w.endpoints))[:min(services, len(w.endpoints))] {
			changed = append(changed, w.replaceOne(i))
		}
		start := time.Now()
		for _, s := range changed {
			w.tracker.UpdateEndpointSlice(s)
		}
		old, now := w.next(b)
		testenv.NoError(b, backend.Apply(b.Context(), old, now))
		took = append(took, time.Since(start))
	}
	report(b.N)
	reportPercentiles(b, took)
}

func reportPercentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(took[len(took)*p/100].Nanoseconds())/1000, fmt.Sprintf("µs/p%d", p))
	}
	b.ReportMetric(0, "ns/op") // It has the time of making slices, too.
}

// meter measures the peak of resident memory until report is called after n operations, and the
// calls of each.
func (k kernel) meter(b *testing.B) (report func(n int)) {
	before := 0
	if k.calls != nil {
		before = k.calls()
	}
	testenv.NoError(b, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)) // The peak is what is resident now.
	return func(n int) {
		if k.calls != nil {
			b.ReportMetric(float64(k.calls()-before)/float64(n), "calls/op")
		}
		status, err := os.ReadFile("/proc/self/status")
		testenv.NoError(b, err)
		_, after, _ := strings.Cut(string(status), "\nVmHWM:")
		var kib float64
		_, err = fmt.Sscan(after, &kib)
		testenv.NoError(b, err)
		b.ReportMetric(kib/1024, "peak-MiB")
	}
}
