package kubewatch

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// watchBy passes on the objects of new informers until the call of the result.
func watchBy(t *testing.T, e *Events, client kubernetes.Interface) (stop func()) {
	t.Helper()
	factory := informers.NewSharedInformerFactory(client, 0)
	synced := register(t, e, factory)
	registration, err := factory.Networking().V1().ServiceCIDRs().Informer().AddEventHandler(e.ServiceCIDRs())
	testenv.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	testenv.NoError(t, e.AwaitSynced(ctx, append(synced, registration.HasSynced)...))
	return func() { cancel(); factory.Shutdown() }
}

// TestEventsOfNewInformers checks that what was deleted while there were no informers is removed, that
// what still exists stays, and that Synced is called once.
func TestEventsOfNewInformers(t *testing.T) {
	ctx := t.Context()
	client := FakeClient(service("web", "10.96.0.1"), service("stays", "10.96.0.2"), service("given", "10.96.0.3"),
		slice("web-1", "10.0.0.1"), slice("stays-1", "10.0.0.2"), objects.Node("n1", "a"), cidr("a", "10.96.0.0/16"), cidr("b", "10.97.0.0/16"))
	r := newRecorder()
	e := &Events{Handler: r, NodeName: "n1", Report: func(err error) { t.Error(err) }}
	former := e.Services()
	watchBy(t, e, client)()
	given := service("given", "10.96.0.3")
	given.Labels = map[string]string{labelProxyName: "other"}
	_, updated := client.CoreV1().Services("test").Update(ctx, given, metav1.UpdateOptions{})
	if err := errors.Join(
		updated,
		client.CoreV1().Services("test").Delete(ctx, "web", metav1.DeleteOptions{}),
		client.DiscoveryV1().EndpointSlices("test").Delete(ctx, "web-1", metav1.DeleteOptions{}),
		client.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}),
		client.NetworkingV1().ServiceCIDRs().Delete(ctx, "b", metav1.DeleteOptions{}),
	); err != nil {
		t.Fatal(err)
	}
	if s := r.get(); len(s.services) != 3 || len(s.slices) != 2 || s.zone != "a" || len(s.cidrs) != 2 || s.earlyRanges != 2 {
		t.Fatalf("without informers: got %+v, want all objects, and the ranges before Synced", s)
	}
	stop := watchBy(t, e, client)
	defer stop()
	former.OnAdd(service("web", "10.96.0.1"), false) // An event that the former informer still had.
	s := r.get()
	if len(s.services) != 1 || s.services["stays"] == "" || len(s.slices) != 1 || s.slices["stays-1"] == "" || s.zone != "" || len(s.cidrs) != 1 {
		t.Errorf("with new informers: got %+v, want Service stays, its slice and one range", s)
	}
	if s.synced != 1 {
		t.Errorf("got %d calls of Synced, want one", s.synced)
	}
}

// TestEventsForeign checks which ClusterIPs are those of Services for other proxies, as they come
// and go.
func TestEventsForeign(t *testing.T) {
	e := &Events{Handler: newRecorder()}
	want := func(what, want string) {
		t.Helper()
		got := ""
		for _, a := range []string{"10.96.0.66", "fd00::66", "10.96.0.10", "::ffff:10.96.0.66"} {
			got += map[bool]string{true: "y", false: "n"}[e.Foreign(netip.MustParseAddr(a))]
		}
		if got != want {
			t.Errorf("%s: got foreign addresses %s, want %s", what, got, want)
		}
	}
	sync := func() {
		t.Helper()
		testenv.NoError(t, e.AwaitSynced(t.Context(), func() bool { return true }))
	}
	sync()
	want("without an informer of Services", "yyyy")
	h := e.Services()
	his := theirs("theirs", "other", "10.96.0.66", "fd00::66")
	h.OnAdd(his, true)
	h.OnAdd(theirs("empty label", "", "10.96.0.66"), true)
	h.OnAdd(theirs("headless", "other", "None"), true)
	h.OnAdd(service("ours", "10.96.0.10"), true)
	sync()
	want("at the start", "yyny")
	changed := theirs("theirs", "other", "fd00::66")
	h.OnUpdate(his, changed)
	h.OnUpdate(theirs("empty label", "", "10.96.0.66"), service("empty label", "10.96.0.66"))
	want("after one has been changed and one has become ours", "nynn")
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "test/theirs"})
	want("after a deletion", "nnnn")
	h.OnAdd(changed, false)
	e.Services()
	sync()
	want("with a new informer, which has none", "nnnn")
}

// TestEventsForeignAmongNewInformers checks that each address may be foreign from a new event handler
// on until it has synced: other proxies may have new Services.
func TestEventsForeignAmongNewInformers(t *testing.T) {
	a := netip.MustParseAddr("10.96.0.66")
	e := &Events{Handler: newRecorder()}
	e.Services()
	if err := e.AwaitSynced(t.Context(), func() bool { return true }); err != nil || e.Foreign(a) {
		t.Fatalf("without Services: got error %v and foreign=%t, want none and false", err, e.Foreign(a))
	}
	h := e.Services()
	if !e.Foreign(a) {
		t.Error("before the new informer has synced: the address is not foreign, want that it may be")
	}
	h.OnAdd(theirs("new", "other", "10.96.0.67"), true)
	if err := e.AwaitSynced(t.Context(), func() bool { return true }); err != nil || e.Foreign(a) || !e.Foreign(netip.MustParseAddr("10.96.0.67")) {
		t.Errorf("after it has synced: got error %v and foreign=%t, want the address of the new Service alone", err, e.Foreign(a))
	}
}
