package differential

import (
	"cmp"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// historiesVariable names the environment variable with the number of histories.
const historiesVariable = "VIPKIT_HISTORIES"

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard()) // kube-proxy logs a line for each unusual object.
	os.Exit(runPrivileged(m))
}

// runPrivileged runs the tests with the privileges to make network namespaces. Without
// them, the tests that need them report that they cannot run.
func runPrivileged(m *testing.M) int {
	return netnstest.WithPrivileges(m.Run)
}

func histories(t *testing.T) int {
	t.Helper()
	return testenv.Count(t, historiesVariable, 10_000)
}

// TestHistories gives both models random histories, of which one in four is without unusual
// objects, and compares their results after every step.
func TestHistories(t *testing.T) {
	count := histories(t)
	d := compareHistories(t, count, proxy.TrackerOptions{})
	if t.Failed() || count < 1000 {
		return // A decision about a rare case may not be needed.
	}
	names := onObjects()
	for _, x := range onResults() {
		names = append(names, x.name)
	}
	reportDecisions(t, d, names...)
}

// TestHistoriesWithoutExternalIPs does the same with both sides configured to ignore
// spec.externalIPs.
func TestHistoriesWithoutExternalIPs(t *testing.T) {
	allow := func(isAllowed bool) {
		testenv.NoError(t, utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{"AllowServiceExternalIPs": isAllowed}))
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
				g := newGenerator(rand.New(rand.NewPCG(seed, uint64(i))))
				g.Unusual = 30
				if i%4 == 0 {
					g.Unusual = 0
				}
				n, diff := g.history(newKubeProxy(d), newVipkit(options))
				steps.Add(int64(n))
				if diff != "" {
					t.Errorf("history %d differs after step %d (-kube-proxy as decided, +vipkit):\n%s\nchanges:\n%s", i, n, diff, g.changeLog())
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

// reportDecisions logs how often each decision was needed. If a decision is not needed in
// many histories, the test does not cover it, or it is out of date.
func reportDecisions(t *testing.T, d *decisions, names ...string) {
	t.Helper()
	for _, name := range names {
		t.Logf("%9d %s", d.counts[name], name)
		if d.counts[name] == 0 {
			t.Errorf("decision %s: got 0 uses, want some", name)
		}
	}
}

// history runs a history, and gives the number of its steps and the difference of the two
// sides after the last step, if any.
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
			difference(expected.portStates(), ours.portStates(isLast)),
			difference(expected.endpointStates(), ours.endpointStates()),
		)
	}
	return steps, diff
}

func difference(want, got any) string {
	if reflect.DeepEqual(want, got) { // faster than a diff
		return ""
	}
	return gocmp.Diff(want, got)
}
