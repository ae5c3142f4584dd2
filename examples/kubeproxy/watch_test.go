package main

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
)

// Whose address it is, is known only once the API server has said so.
func TestForeign(t *testing.T) {
	theirs, ours := service("theirs", "10.96.0.66"), service("ours", "10.96.0.10")
	theirs.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	client := fake.NewClientset(theirs, ours)
	isForeign := func(f *foreign) (out []bool) {
		for _, a := range []string{"10.96.0.66", "10.96.0.10", "10.96.0.77"} {
			out = append(out, f.has(netip.MustParseAddr(a)))
		}
		return out
	}
	check := func(f *foreign, want ...bool) {
		t.Helper()
		for i, got := range isForeign(f) {
			if got != want[i] {
				t.Errorf("address %d: foreign is %v, wanted %v", i, got, want[i])
			}
		}
	}
	f := &foreign{ctx: t.Context(), client: client, log: logr.Discard()}
	check(f, true, true, true)
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
	audience{tracker, health.New(health.Options{}), f}.Synced()
	check(f, true, false, false)
	more := service("more", "10.97.0.77")
	more.Labels = theirs.Labels
	if err := client.Tracker().Add(more); err != nil {
		t.Fatal(err)
	}
	audience{tracker, health.New(health.Options{}), f}.UpdateServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")})
	if !f.has(netip.MustParseAddr("10.97.0.77")) {
		t.Error("an address in a range that is new is not foreign, though another proxy's Service has it")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tracker.Next(ctx, proxy.Snapshot{}); err != nil {
		t.Errorf("the tracker was not told that it has everything: %v", err)
	}

	client.PrependReactor("list", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("forbidden")
	})
	f.list() // What was known may not be so any more.
	check(f, true, true, true)
}

// The Node goes to all who want to know, also that there is none.
func TestAudienceHearsOfTheNode(t *testing.T) {
	server := health.New(health.Options{NodeName: "node-1"})
	tracker := &nodes{ServiceChangeTracker: proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})}
	a := audience{ServiceChangeTracker: tracker, health: server}
	a.UpdateNode(node("192.0.2.1"))
	a.UpdateNode(nil)
	if len(tracker.heard) != 2 || tracker.heard[0] == nil || tracker.heard[1] != nil {
		t.Errorf("the tracker heard of %v, wanted a Node and then none", tracker.heard)
	}
}

// nodes is a tracker that notes what it hears of the Node.
type nodes struct {
	proxy.ServiceChangeTracker
	heard []*v1.Node
}

func (n *nodes) UpdateNode(o *v1.Node) { n.heard = append(n.heard, o) }
