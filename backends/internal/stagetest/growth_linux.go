package stagetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// Growth changes the size of what a backend applies at random, in one Apply or many, each of
// which may add chains, change the node and have a fault. After a failure, the next Apply or
// the one after it must succeed: what the kernel refused must not affect later Applies.
type Growth struct {
	// Sizes are numbers of Services and of endpoints, below and above all limits.
	Sizes []int
	Steps int
	// New makes a backend that adopts the existing objects.
	New func() (proxy.Backend, error)
	// Fault makes one of the next transactions fail; with false, none fails any more.
	Fault func(r *rand.Rand, on bool)
	// Dump returns the objects in the kernel as text, and Fresh those that a first Apply of
	// a snapshot makes in another namespace.
	Dump  func() string
	Fresh func(s proxy.Snapshot) string
}

// growing is the state of one run.
type growing struct {
	Growth
	t       *testing.T
	r       *rand.Rand
	backend proxy.Backend
	// applied is what the kernel is known to hold, and last the snapshot applied last.
	applied, last proxy.Snapshot
	world         growthWorld
}

// growthWorld has the sizes that a snapshot is made from.
type growthWorld struct {
	services, endpoints, sticky, ranges int
	prefix                              bool
	family                              v1.IPFamily
}

// Run makes the changes and checks each Apply.
func (g Growth) Run(t *testing.T, r *rand.Rand) {
	t.Helper()
	w := &growing{Growth: g, t: t, r: r}
	w.restart()
	for i := range g.Steps {
		before := w.world
		fault := w.r.IntN(3) == 0
		w.change()
		w.Fault(w.r, fault)
		what := fmt.Sprintf("step %d, fault: %t, %+v to %+v", i, fault, before, w.world)
		w.step(what, w.world.snapshot(), fault)
		if t.Failed() {
			return
		}
		if drifted := w.backend.Abilities().Drifted; drifted == nil || drifted(t.Context()) {
			w.applied = proxy.Snapshot{} // the fault was a change by another program
			w.step(what+", once more", w.last, false)
		}
		if i%16 == 15 {
			w.compare(what)
		}
		if w.r.IntN(8) == 0 {
			w.restart()
		}
	}
	w.compare("in the end")
}

func (w *growing) restart() {
	w.backend, w.applied = w.open(w.t), proxy.Snapshot{}
}

// change changes one or several sizes of the world.
func (w *growing) change() {
	size := func() int { return w.Sizes[w.r.IntN(len(w.Sizes))] }
	for once := true; once || w.r.IntN(2) == 0; once = false {
		switch w.r.IntN(7) {
		case 0, 1:
			w.world.services = size()
		case 2, 3:
			w.world.endpoints = size()
		case 4:
			w.world.sticky = size()
		case 5:
			w.world.ranges = w.r.IntN(4)
		case 6:
			w.world.prefix = !w.world.prefix
		}
	}
	if w.world.family == "" || w.r.IntN(16) == 0 {
		w.world.family = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}[w.r.IntN(2)]
	}
}

// step applies a snapshot as a Runner does.
func (w *growing) step(what string, want proxy.Snapshot, fault bool) {
	w.t.Helper()
	const tries = 4
	var errs []error
	for range tries {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		err := w.backend.Apply(ctx, w.applied, want)
		cancel()
		w.Fault(w.r, false)
		w.applied = w.applied.Achieved(want, err)
		if err == nil {
			w.last = want
			if len(errs) > 0 && !fault {
				w.t.Errorf("%s: got errors %v before success, want none", what, errs)
			}
			return
		}
		errs = append(errs, err)
	}
	w.t.Errorf("%s: got errors %v from %d Applies, want success", what, errs, tries)
}

func (w *growing) compare(what string) {
	w.t.Helper()
	if diff := cmp.Diff(w.Fresh(w.last), w.Dump()); diff != "" {
		w.t.Errorf("%s: objects in the kernel (-after a first Apply +got):\n%.3000s", what, diff)
	}
}

// snapshot makes the snapshot of a world.
func (g growthWorld) snapshot() proxy.Snapshot {
	node := Node()
	if g.prefix {
		node.NodePorts = proxy.NodePortAddresses{Prefixes: snapshots.Prefixes("192.0.2.0/24", "2001:db8::/64")}
	}
	var ports []*proxy.ServicePort
	for i := range g.services {
		ports = append(ports, Port(g.family, 10+i, 1+i%3))
	}
	large, sticky := Port(g.family, 0, 0), Port(g.family, 1, 0)
	large.Cluster, sticky.Cluster = Hosts(g.family, g.endpoints), Hosts(g.family, g.sticky)
	sticky.Affinity = affinity.Config{Timeout: time.Hour}
	sticky.Frontends = append(sticky.Frontends, NodePort(g.family, 30001))
	for i, p := range []*proxy.ServicePort{large, sticky} {
		for j := range p.Frontends {
			f := &p.Frontends[j]
			if len(p.Cluster) == 0 {
				f.FromInside, f.FromOutside = proxy.TrafficRoute{Action: proxy.Reject}, proxy.TrafficRoute{Action: proxy.Reject}
			}
			if g.ranges > i && f.Kind == proxy.ClusterIP {
				f.Restricted, f.AllowedSources = true, growthRanges(g.family)[:g.ranges]
			}
		}
		ports = append(ports, p)
	}
	return proxy.NewSnapshot(node, ports...)
}

func growthRanges(fam v1.IPFamily) []netip.Prefix {
	if fam == v1.IPv6Protocol {
		return snapshots.Prefixes("2001:db8::/32", "2001:db9::/64", "fd00:10::/32")
	}
	return snapshots.Prefixes("192.0.2.0/24", "198.51.100.0/25", "10.0.0.0/9")
}

// Hosts returns endpoints at n pods.
func Hosts(fam v1.IPFamily, n int) []*endpoints.Endpoint {
	pool := make([]*endpoints.Endpoint, n)
	for i := range pool {
		pool[i] = Endpoint(fam, 1+i, 8080)
	}
	return pool
}

// SizesAround returns the sizes just below, at and above limits, and small ones, in rising
// order.
func SizesAround(limits ...int) []int {
	sizes := []int{0, 1, 2, 3}
	for _, l := range limits {
		sizes = append(sizes, l-1, l, l+1)
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}
