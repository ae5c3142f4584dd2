package peer_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const existing = 20_000

// operation is a measured operation.
type operation struct {
	name string
	do   func(context.Context) error
}

// measure measures each operation with one client and with eight.
func measure(b *testing.B, operations []operation) {
	for _, o := range operations {
		for _, clients := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/clients=%d", o.name, clients), func(b *testing.B) {
				storetest.Share(b, clients, 1, func(ctx context.Context, _, _ int) error { return o.do(ctx) })
			})
		}
	}
}

func names() func() string {
	var serial atomic.Int64
	return func() string { return fmt.Sprintf("bench-%d", serial.Add(1)) }
}

// BenchmarkStore allocates with kubestore while 20,000 addresses are in use. The floor only
// creates an object.
func BenchmarkStore(b *testing.B) {
	const clusterIPs = "10.96.0.0/12"
	cp := controlplane.Start(b, controlplane.Options{ServiceRange: clusterIPs})
	client, s := newStore(b, cp)
	fill(b, client, "filler.example.com")
	p := newPool(b, s, clusterIPs)
	testenv.NoError(b, p.Sync(b.Context()))
	name, some := names(), allocator.Request{Kind: allocator.IPv4}
	owner := func() allocator.Owner { return allocator.Owner("example.com/gates/default/" + name()) }
	var direct atomic.Int64
	measure(b, []operation{
		{"floor", func(ctx context.Context) error {
			return makeAddress(ctx, client, int(direct.Add(1))+existing, "filler.example.com")
		}},
		{"allocate", func(ctx context.Context) error {
			_, err := p.Allocate(ctx, owner(), some)
			return err
		}},
		{"reserve-bind-release", func(ctx context.Context) error {
			claims, err := p.Reserve(ctx, owner(), some)
			if err == nil {
				claims, err = p.Bind(ctx, claims...)
			}
			if err == nil {
				err = p.Release(ctx, claims...)
			}
			return err
		}},
	})
}

// BenchmarkService creates Services for which the API server allocates while 20,000
// addresses are in use, and headless ones, for which it does not. After a minute its repair
// begins to free the other addresses, so create a few hundred Services at most.
func BenchmarkService(b *testing.B) {
	cp := controlplane.Start(b, controlplane.Options{ServiceRange: "10.96.0.0/12"})
	client, _ := newStore(b, cp)
	fill(b, client, "ipallocator.k8s.io")
	name := names()
	measure(b, []operation{
		{"ClusterIP", func(ctx context.Context) error { return makeAny(ctx, client, name(), "") }},
		{"headless", func(ctx context.Context) error { return makeAny(ctx, client, name(), v1.ClusterIPNone) }},
	})
}

func makeAny(ctx context.Context, client kubernetes.Interface, name, clusterIP string) error {
	_, err := client.CoreV1().Services("default").Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.ServiceSpec{ClusterIP: clusterIP, Ports: []v1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	return err
}

// fill creates IPAddress objects that managedBy manages.
func fill(b *testing.B, client kubernetes.Interface, managedBy string) {
	b.Helper()
	testenv.NoError(b, testenv.Each(existing, 16, func(i int) error { return makeAddress(b.Context(), client, i, managedBy) }))
}

// makeAddress creates one of many IPAddress objects, of a Service that does not exist (yet).
func makeAddress(ctx context.Context, client kubernetes.Interface, n int, managedBy string) error {
	_, err := client.NetworkingV1().IPAddresses().Create(ctx, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: netip.AddrFrom4([4]byte{10, 120, byte(n >> 8), byte(n)}).String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: managedBy,
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: "default", Name: fmt.Sprintf("filler-%d", n),
		}},
	}, metav1.CreateOptions{})
	return err
}

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
	elapsed := testenv.ProcessorTime(b)
	for b.Loop() {
		testenv.NoError(b, do())
	}
	b.ReportMetric(float64(elapsed().Nanoseconds())/float64(b.N), "cpu-ns/op")
}
