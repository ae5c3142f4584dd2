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
	count, seed := histories(t), testenv.Random(t).Uint64()
	all := newDecisions()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var next, steps atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			d := newDecisions()
			for i := int(next.Add(1)); i <= count && !t.Failed(); i = int(next.Add(1)) {
				steps.Add(int64(runHistory(t, d, seed, i)))
			}
			mu.Lock()
			defer mu.Unlock()
			all.add(d)
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	t.Logf("%d histories, %d steps", count, steps.Load())
	if count < 1000 {
		return // Rare cases may not be among them.
	}
	names := onObjects()
	for _, x := range onResults() {
		names = append(names, x.name)
	}
	reportDecisions(t, all, names...)
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

// runHistory gives the number of steps.
func runHistory(t *testing.T, d *decisions, seed uint64, number int) int {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, uint64(number))), cluster: newCluster(), odd: 30}
	if number%4 == 0 {
		g.odd = 0
	}
	kube, ours := newKubeProxy(d), newVipkit(proxy.NodePortAddresses{})
	steps := 6 + g.IntN(14)
	for step := range steps {
		for range 1 + g.IntN(3) {
			g.change(kube, ours)
		}
		kube.sync()
		ours.sync()
		isLast := step == steps-1
		expected := kube.expectation(g.cluster, ours, isLast)
		diff := cmp.Or(
			difference(expected.pictures(), ours.pictures(isLast)),
			difference(expected.endpointPictures(), ours.endpointPictures()),
		)
		if diff != "" {
			t.Errorf("history %d differs after step %d (-kube-proxy as decided, +vipkit):\n%s\nwhat happened:\n%s", number, step, diff, g.story())
			return step
		}
	}
	return steps
}

func difference(want, got any) string {
	if reflect.DeepEqual(want, got) { // It takes longer to see how two things differ.
		return ""
	}
	return gocmp.Diff(want, got)
}
