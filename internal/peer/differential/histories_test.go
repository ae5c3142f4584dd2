package differential

import (
	"cmp"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// historiesVariable names the environment variable that sets how many histories there
// are.
const historiesVariable = "VIPKIT_HISTORIES"

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard()) // It has a line for each odd object.
	os.Exit(runPrivileged(m))
}

// runPrivileged runs the tests with the privileges to make network namespaces. Where
// they cannot be had, the tests that need them say so.
func runPrivileged(m *testing.M) int {
	status, err := netns.Privileged(m.Run)
	if err != nil {
		return m.Run()
	}
	return status
}

func histories(t *testing.T) int {
	t.Helper()
	text := os.Getenv(historiesVariable)
	if text == "" {
		return 10_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", historiesVariable, err)
	}
	return n
}

// TestHistories tells both models random histories, of which one in four is without
// odd objects, and compares what they say after every step.
func TestHistories(t *testing.T) {
	count := histories(t)
	d := compareHistories(t, count, proxy.TrackerOptions{})
	if t.Failed() || count < 1000 {
		return // Rare cases may not be among them.
	}
	names := onObjects()
	for _, x := range onResults() {
		names = append(names, x.name)
	}
	reportDecisions(t, d, names...)
}

// TestHistoriesWithoutExternalIPs does so where both sides are told to ignore
// spec.externalIPs.
func TestHistoriesWithoutExternalIPs(t *testing.T) {
	allow := func(isAllowed bool) {
		if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{"AllowServiceExternalIPs": isAllowed}); err != nil {
			t.Fatal(err)
		}
	}
	allow(false)
	defer allow(true)
	d := compareHistories(t, max(1, histories(t)/10), proxy.TrackerOptions{IgnoreExternalIPs: true})
	if !t.Failed() {
		reportDecisions(t, d, "withoutExternalIPs")
	}
}

func compareHistories(t *testing.T, count int, options proxy.TrackerOptions) *decisions {
	t.Helper()
	seed, all := testenv.Random(t).Uint64(), newDecisions()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var next, steps atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			d := newDecisions()
			for i := int(next.Add(1)); i <= count && !t.Failed(); i = int(next.Add(1)) {
				g := &generator{Rand: rand.New(rand.NewPCG(seed, uint64(i))), cluster: newCluster(), odd: 30}
				if i%4 == 0 {
					g.odd = 0
				}
				n, diff := g.history(newKubeProxy(d), newVipkit(options))
				steps.Add(int64(n))
				if diff != "" {
					t.Errorf("history %d differs after step %d (-kube-proxy as decided, +vipkit):\n%s\nwhat happened:\n%s", i, n, diff, g.story())
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all.add(d)
		})
	}
	wg.Wait()
	t.Logf("%d histories, %d steps", count, steps.Load())
	return all
}

// reportDecisions says how often each decision was needed. One that is not needed in
// many histories is a hole in the test, or out of date.
func reportDecisions(t *testing.T, d *decisions, names ...string) {
	t.Helper()
	for _, name := range names {
		t.Logf("%9d %s", d.counts[name], name)
		if d.counts[name] == 0 {
			t.Errorf("the decision %s was never needed, want it to be", name)
		}
	}
}

// history makes a history, and gives the number of its steps and how the two sides
// differ after the last of them, if they do.
func (g *generator) history(kube *kubeProxy, ours *vipkit) (steps int, diff string) {
	most := 6 + g.IntN(14)
	for steps < most && diff == "" {
		steps++
		for range 1 + g.IntN(3) {
			g.change(kube, ours)
		}
		kube.sync()
		ours.sync()
		isLast := steps == most
		expected := kube.expectation(g.cluster, ours, isLast)
		diff = cmp.Or(
			difference(expected.pictures(), ours.pictures(isLast)),
			difference(expected.endpointPictures(), ours.endpointPictures()),
		)
	}
	return steps, diff
}

func difference(want, got any) string {
	if reflect.DeepEqual(want, got) { // It takes longer to see how two things differ.
		return ""
	}
	return gocmp.Diff(want, got)
}
