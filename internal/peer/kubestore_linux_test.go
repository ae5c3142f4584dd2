package peer_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// patience bounds each wait.
const patience = 2 * time.Minute

// ours selects the objects of the store under test.
const ours = networkingv1.LabelManagedBy + "=" + kubestore.DefaultManagedBy

func newStore(t testing.TB, cp *controlplane.ControlPlane) (kubernetes.Interface, *kubestore.Store) {
	t.Helper()
	client, err := kubewatch.NewClient(cp.Config())
	testenv.NoError(t, err)
	return client, kubestore.New(client.NetworkingV1(), kubestore.Options{})
}

func newPool(t testing.TB, s allocator.Store, prefix string) *allocator.Pool {
	t.Helper()
	p, err := allocator.NewPool(s, allocator.PoolOptions{
		Ranges: []allocator.Config{{Prefix: netip.MustParsePrefix(prefix)}},
	})
	testenv.NoError(t, err)
	return p
}

// withoutPrefix is a store that hides the addresses of the API server itself.
type withoutPrefix struct {
	*kubestore.Store
	not netip.Prefix
}

func (a withoutPrefix) Load(ctx context.Context) (allocator.State, error) {
	state, err := a.Store.Load(ctx)
	all := state.Claims
	state.Claims = nil
	for _, c := range all {
		if !a.not.Contains(c.Key.Addr()) {
			state.Claims = append(state.Claims, c)
		}
	}
	return state, err
}

// TestStoreContract runs the tests of package storetest.
func TestStoreContract(t *testing.T) {
	const clusterIPs = "10.99.0.0/24"
	cp := controlplane.Start(t, controlplane.Options{ServiceRange: clusterIPs})
	client, s := newStore(t, cp)
	storetest.Run(t, func(t *testing.T) allocator.Store {
		err := client.NetworkingV1().IPAddresses().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: ours})
		testenv.NoError(t, err)
		return withoutPrefix{s, netip.MustParsePrefix(clusterIPs)}
	}, storetest.Ports)
}

// TestWatchFromTheBeginning checks that a watch from version 0 yields the existing objects, and
// then changes.
func TestWatchFromTheBeginning(t *testing.T) {
	cp := controlplane.Start(t, controlplane.Options{ServiceRange: "10.99.0.0/24"})
	_, s := newStore(t, cp)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	seen := 0
	for e, err := range s.Watch(ctx, 0) {
		if err != nil {
			t.Fatalf("after %d events: %v", seen, err)
		}
		if seen++; seen == 1 { // the address of the Service "kubernetes"
			if want := allocator.Owner("services/default/kubernetes"); e.Claim.Owner != want {
				t.Errorf("got %+v, want the claim of %s", e.Claim, want)
			}
			op := allocator.Op{Claim: allocator.Claim{Key: storetest.Key(1), Owner: "me", Token: 1}}
			_, err := s.Commit(ctx, []allocator.Op{op})
			testenv.NoError(t, err)
			continue
		}
		if e.Claim.Key != storetest.Key(1) {
			t.Errorf("got %+v, want the claim of %v", e.Claim, storetest.Key(1))
		}
		return
	}
}

// register records the owner of each address, and fails the test if an address has two.
type register struct {
	t      *testing.T
	mu     sync.Mutex
	owners map[netip.Addr]string
	// ours and theirs count the addresses that each allocator has allocated.
	ours, theirs int
}

func (r *register) taken(a netip.Addr, owner string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, isTaken := r.owners[a]; isTaken {
		r.t.Errorf("%v has two owners: %s and %s", a, other, owner)
	}
	r.owners[a] = owner
	if strings.HasPrefix(owner, "services/") {
		r.theirs++
	} else {
		r.ours++
	}
}

func (r *register) freed(a netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owners, a)
}

// isRefusal reports whether an error of the API server says that an address has an owner.
func isRefusal(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "already allocated")
}

// makeService creates a Service, so that the API server allocates an address: a particular
// one, or any. It gives none if the address has another owner.
func makeService(ctx context.Context, client kubernetes.Interface, name, clusterIP string) (netip.Addr, error) {
	made, err := client.CoreV1().Services("default").Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.ServiceSpec{ClusterIP: clusterIP, Ports: []v1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	switch {
	case clusterIP != "" && isRefusal(err):
		return netip.Addr{}, nil
	case err != nil:
		return netip.Addr{}, err
	}
	return netip.ParseAddr(made.Spec.ClusterIP)
}

// take allocates an address from a pool in the same way.
func take(ctx context.Context, p *allocator.Pool, owner string, q allocator.Request) ([]allocator.Claim, error) {
	claims, err := p.Reserve(ctx, allocator.Owner(owner), q)
	switch {
	case q.Key.Kind() != 0 && errors.Is(err, allocator.ErrAllocated):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return p.Bind(ctx, claims...)
}

// TestSharedCluster has the API server and pools allocate from one range at the same time,
// any address and the same one. The repair of the API server must not free any of them.
func TestSharedCluster(t *testing.T) {
	const clusterIPs = "10.99.0.0/22"
	cp := controlplane.Start(t, controlplane.Options{ServiceRange: clusterIPs})
	client, s := newStore(t, cp)
	r := &register{t: t, owners: map[netip.Addr]string{}}
	leak := makeLeak(t, client)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var living, running sync.WaitGroup
	for worker := range 4 {
		living.Go(func() { r.churnServices(ctx, client, worker) })
		p := newPool(t, s, clusterIPs)
		if worker%2 == 0 { // The other pools do not watch.
			running.Go(func() { p.Run(ctx) })
		}
		living.Go(func() { r.churnClaims(ctx, p, worker) })
	}
	living.Wait()
	r.contend(ctx, client, newPool(t, s, clusterIPs))
	cancel()
	running.Wait()
	t.Logf("addresses allocated: %d by the API server, %d by the pools", r.theirs, r.ours)
	if r.ours < 100 || r.theirs < 100 {
		t.Error("addresses allocated: got too few, want at least 100 by each")
	}
	awaitRepair(t, client, leak)
	r.check(client)
}

// makeLeak creates an object like one that the API server leaves when it crashes. The repair
// of the API server deletes it after a minute.
func makeLeak(t *testing.T, client kubernetes.Interface) (name string) {
	t.Helper()
	made, err := client.NetworkingV1().IPAddresses().Create(t.Context(), &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: "10.99.3.254", Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: "default", Name: "never",
		}},
	}, metav1.CreateOptions{})
	testenv.NoError(t, err)
	return made.Name
}

// awaitRepair waits until the repair has deleted the leak. By then it has deleted all objects
// of that age that it considers leaked.
func awaitRepair(t *testing.T, client kubernetes.Interface, leak string) {
	t.Helper()
	testenv.Eventually(t, patience, "the API server has deleted IPAddress "+leak, func() error {
		_, err := client.NetworkingV1().IPAddresses().Get(t.Context(), leak, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return errors.New("it exists")
	})
}

// churnServices makes Services, and deletes every other one.
func (r *register) churnServices(ctx context.Context, client kubernetes.Interface, worker int) {
	var last string
	var address netip.Addr
	for i := range 50 {
		name := fmt.Sprintf("churn-%d-%d", worker, i)
		a, err := makeService(ctx, client, name, "")
		if err != nil {
			r.t.Errorf("Service %s: %v", name, err)
			return
		}
		r.taken(a, "services/default/"+name)
		if i%2 == 1 {
			// Delete the previous Service.
			r.freed(address)
			if err := client.CoreV1().Services("default").Delete(ctx, last, metav1.DeleteOptions{}); err != nil {
				r.t.Errorf("Service %s: %v", last, err)
				return
			}
		}
		last, address = name, a
	}
}

// churnClaims allocates addresses for owners that do not exist, and releases every other one.
func (r *register) churnClaims(ctx context.Context, p *allocator.Pool, worker int) {
	for i := range 100 {
		// The repair would delete these objects if they had the label of the API server.
		owner := fmt.Sprintf("services-of-ours/default/%d-%d", worker, i)
		if i%4 == 0 {
			owner = fmt.Sprintf("example.com/gates/default/%d-%d", worker, i)
		}
		claims, err := take(ctx, p, owner, allocator.Request{Kind: allocator.IPv4})
		if err != nil {
			r.t.Errorf("%s: %v", owner, err)
			return
		}
		r.taken(claims[0].Key.Addr(), owner)
		if i%2 == 1 {
			r.freed(claims[0].Key.Addr())
			if err := p.Release(ctx, claims...); err != nil {
				r.t.Errorf("%s: %v", owner, err)
				return
			}
		}
	}
}

// contend has both allocators request the same address, many times: exactly one gets it.
func (r *register) contend(ctx context.Context, client kubernetes.Interface, p *allocator.Pool) {
	won := map[string]int{}
	for i := range 60 {
		// From the lower band, from which no dynamic allocation has been made yet.
		address := netip.AddrFrom4([4]byte{10, 99, 0, byte(2 + i)})
		var theirs netip.Addr
		var claims []allocator.Claim
		var err1, err2 error
		var both sync.WaitGroup
		both.Go(func() { theirs, err1 = makeService(ctx, client, fmt.Sprintf("static-%d", i), address.String()) })
		both.Go(func() {
			claims, err2 = take(ctx, p, fmt.Sprintf("nodes/static-%d", i), allocator.Request{Key: allocator.AddrKey(address)})
		})
		both.Wait()
		if err := errors.Join(err1, err2); err != nil {
			r.t.Fatalf("%v: %v", address, err)
		}
		if theirs.IsValid() {
			won["the API server"]++
			r.taken(theirs, fmt.Sprintf("services/default/static-%d", i))
		}
		for _, c := range claims {
			won["the pool"]++
			r.taken(c.Key.Addr(), string(c.Owner))
		}
		if !theirs.IsValid() && len(claims) == 0 {
			r.t.Errorf("owner of %v: got none, want one", address)
		}
	}
	r.t.Logf("of 60 addresses that both requested, each got: %v", won)
}

// check compares the objects of the cluster with the recorded owners.
func (r *register) check(client kubernetes.Interface) {
	r.t.Helper()
	addresses, err1 := client.NetworkingV1().IPAddresses().List(r.t.Context(), metav1.ListOptions{})
	services, err2 := client.CoreV1().Services("").List(r.t.Context(), metav1.ListOptions{})
	testenv.NoError(r.t, errors.Join(err1, err2))
	found := map[netip.Addr]string{}
	for _, o := range addresses.Items {
		if o.Labels[networkingv1.LabelManagedBy] == kubestore.DefaultManagedBy {
			found[netip.MustParseAddr(o.Name)] = o.Spec.ParentRef.Name
		}
	}
	for _, o := range services.Items {
		a := netip.MustParseAddr(o.Spec.ClusterIP)
		if other, isOurs := found[a]; isOurs {
			r.t.Errorf("%v has two owners: %s and Service %s", a, other, o.Name)
		}
		found[a] = o.Name
	}
	for a, owner := range r.owners {
		if want := owner[strings.LastIndex(owner, "/")+1:]; found[a] != want {
			r.t.Errorf("owner of %v in the cluster: got %q, want %s", a, found[a], owner)
		}
	}
	if len(found) != len(r.owners)+1 { // the Service "kubernetes"
		r.t.Errorf("addresses in use in the cluster: got %d, want %d", len(found), len(r.owners)+1)
	}
}
