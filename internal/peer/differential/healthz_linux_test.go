package differential

import (
	"context"
	"regexp"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
)

// node is the source of the Node object for kube-proxy's server.
type node struct {
	mu     sync.Mutex
	object *v1.Node
}

// Node returns the object; nil if it is unknown.
func (n *node) Node() *v1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.object
}

func (n *node) set(object *v1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.object = object
}

const healthzAddress = "127.0.0.1:10256"

// TestHealthz compares /healthz and /livez, without the times in the responses, while the
// proxies fall behind and catch up and the node changes.
func TestHealthz(t *testing.T) {
	g := newGenerator(testenv.Random(t))
	kubeNS, ourNS := netnstest.NewNS(t), netnstest.NewNS(t)
	object := &node{}
	theirs := healthcheck.NewProxyHealthServer(healthzAddress, 0, object)
	go func() {
		// It serves until the process ends.
		_ = kubeNS.Do(func() error { return theirs.Run(t.Context()) })
	}()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: nodeName})
	ours, err := health.New(health.Options{Address: healthzAddress, NodeEligible: tracker.NodeEligible, Timeout: 2})
	testenv.NoError(t, err)
	observer := ours.Observer()
	testenv.NoError(t, observer.Begin(&proxy.Runner{Source: tracker, ResyncInterval: 1}))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { within(t, ourNS, func() error { ours.Run(ctx); return nil }) })
	defer running.Wait()
	defer cancel()

	statuses := map[string]int{}
	for step := range 200 {
		switch n := g.IntN(3); {
		case step == 0: // Nothing has happened yet.
		case step == 1 || n == 0:
			theirs.Updated(v1.IPv4Protocol)
			theirs.Updated(v1.IPv6Protocol)
			s := proxy.NewSnapshot(nil)
			observer.Synced(proxy.Sync{Snapshot: s, Applied: s, Start: time.Now()})
		case n == 1:
			theirs.QueuedUpdate(v1.IPv4Protocol)
			theirs.QueuedUpdate(v1.IPv6Protocol)
			observer.Started(proxy.Sync{Start: time.Now()})
		default:
			n := g.eligibility()
			object.set(n)
			tracker.UpdateNode(n)
		}
		for _, path := range []string{"/healthz", "/livez", "/", "/healthz/"} {
			want, got := withoutTimes(awaitResponse(t, kubeNS, path)), withoutTimes(awaitResponse(t, ourNS, path))
			if want != got {
				t.Fatalf("step %d, GET %s:\nwant %q\ngot  %q", step, path, want, got)
			}
			statuses[want[:12]]++
		}
	}
	t.Logf("answers: %v", statuses)
	for _, status := range []string{"HTTP/1.1 200", "HTTP/1.1 503", "HTTP/1.1 404"} {
		if statuses[status] == 0 {
			t.Errorf("responses with %s: got none, want some of each: %v", status, statuses)
		}
	}
}

// eligibility returns a Node that is eligible for traffic, or one that is about to be removed.
func (g *generator) eligibility() *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	switch g.IntN(5) {
	case 0:
		return nil
	case 1:
		n.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	case 2:
		n.Spec.Taints = []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: objects.OneOf(g.Rand, v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute)}}
	case 3:
		n.Spec.Taints = []v1.Taint{{Key: "other", Effect: v1.TaintEffectNoSchedule}}
	}
	return n
}

// awaitResponse repeats a request until it gets a response, as servers start with a delay.
func awaitResponse(t *testing.T, ns *netns.NS, path string) string {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(5 * time.Millisecond) {
		text := ask(t, ns, healthzAddress, "GET "+path+" HTTP/1.1")
		if text != noConnection || time.Now().After(deadline) {
			return text
		}
	}
}

// withoutTimes removes the times of a response, and its length, which depends on them.
func withoutTimes(answer string) string {
	answer = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)"`).ReplaceAllString(answer, `"TIME"`)
	return regexp.MustCompile(`Content-Length: 1?\d\d\r\n|Content-Length: [23]\d\d\r\n`).ReplaceAllString(answer, "")
}
