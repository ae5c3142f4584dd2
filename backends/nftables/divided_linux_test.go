package nftables

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// observed is a context that calls look before each transaction.
type observed struct {
	context.Context
	look func()
}

func (o observed) Err() error {
	o.look()
	return o.Context.Err()
}

// While a change is made in several transactions, each frontend has the verdict and the endpoints of
// before, or those of after, and never a mixture: a packet would reach an endpoint by the policy of another
// state.
func TestDividedChangeMixesNoFrontend(t *testing.T) {
	t.Parallel()
	s := newLimited(t, 6000)
	old, new := dividedPorts(24, 0), dividedPorts(5, 3)
	frontends := func() []string {
		listing := s.listing(t)
		return objects.Many(dividedCount, func(i int) string {
			var own []string
			for line := range strings.Lines(listing) {
				if strings.Contains(line, fmt.Sprintf(" %d ", dividedPort(i))) {
					own = append(own, line)
				}
			}
			return strings.Join(own, "")
		})
	}
	s.Apply(t, new)
	after := frontends()
	s.Apply(t, old)
	before := frontends()
	mixed := false
	ctx := observed{t.Context(), func() {
		changed := 0
		for i, got := range frontends() {
			switch got {
			case before[i]:
			case after[i]:
				changed++
			default:
				t.Errorf("node port %d between two transactions: got\n%swant\n%sor\n%s", dividedPort(i), got, before[i], after[i])
			}
		}
		mixed = mixed || changed > 0 && changed < dividedCount
	}}
	testenv.NoError(t, s.Backend.Apply(ctx, old, new))
	if !mixed {
		t.Error("the change took one transaction, want several")
	}
	if diff := slices.Compare(after, frontends()); diff != 0 {
		t.Errorf("after the change: got %q, want %q", frontends(), after)
	}
}

// A change in several transactions may end before any of them. What the backend then knows of the kernel is
// right: the next Apply completes the change, or takes it back.
func TestDividedChangeEndsHalfway(t *testing.T) {
	t.Parallel()
	s := newLimited(t, 6000)
	snapshots := [...]proxy.Snapshot{dividedPorts(24, 0), dividedPorts(5, 3)}
	var want [len(snapshots)]string
	for i, snapshot := range snapshots {
		s.Apply(t, snapshot)
		want[i] = withoutSlots(s.listing(t))
	}
	halfway, at := 0, len(snapshots)-1
	for n := range 60 {
		next := snapshots[1-at]
		ctx, cancel := context.WithCancel(t.Context())
		looks := 0
		err := s.Backend.Apply(observed{ctx, func() {
			if looks++; looks > n/2 {
				cancel()
			}
		}}, s.Applied, next)
		cancel()
		if got := withoutSlots(s.listing(t)); !slices.Contains(want[:], got) {
			halfway++
		}
		s.Applied = s.Applied.Achieved(next, err)
		if n%4 < 2 {
			at = 1 - at
		}
		s.Apply(t, snapshots[at])
		testenv.Same(t, want[at], withoutSlots(s.listing(t)), "ruleset after an end before transaction %d, with error %v", n/2, err)
		if t.Failed() {
			return
		}
	}
	if halfway < 5 {
		t.Errorf("ends between two transactions: got %d, want at least 5", halfway)
	}
}

// A change in several transactions names the service port that the kernel refuses, and makes all others. The
// backend then knows which objects the transactions before the refused one have written.
func TestDividedChangeWithRefusedPort(t *testing.T) {
	t.Parallel()
	s := newLimited(t, 3500)
	old, new, refused := dividedPorts(5, 0), dividedPorts(60, 3), stagetest.Port(v1.IPv4Protocol, 12, 2)
	refused.Frontends = []proxy.Frontend{stagetest.NodePort(v1.IPv4Protocol, uint16(dividedPort(11)))} // in the last transaction
	s.Apply(t, new)
	want := withoutSlots(s.listing(t))
	s.Apply(t, old)
	s.Restart(t)
	s.applyRefused(t, proxy.Snapshot{}, proxy.NewSnapshot(stagetest.Node(), append(slices.Collect(new.All()), refused)...), refused.Name)
	s.Applied = new
	s.Apply(t, new)
	testenv.Same(t, want, withoutSlots(s.listing(t)), "ruleset without the refused port")
}

// newLimited returns a stage whose transactions have at most some bytes.
func newLimited(t *testing.T, bytes int) *stage {
	t.Helper()
	s := newStage(t)
	s.New = func(o Options) (proxy.Backend, error) {
		k, err := newKernel(o)
		if err != nil {
			return nil, err
		}
		k.Netlink.LimitBatch(bytes)
		return newBackend(k, k)
	}
	s.Restart(t)
	return s
}

func dividedPort(i int) int { return 30100 + i }

// dividedCount is the number of service ports in the tests of divided changes.
const dividedCount = 12

// dividedPorts returns service ports with a node port each. Endpoint k of each is host first+k.
// Ports with many endpoints masquerade nothing.
func dividedPorts(hosts, first int) proxy.Snapshot {
	return proxy.NewSnapshot(stagetest.Node(), objects.Many(dividedCount, func(i int) *proxy.ServicePort {
		p := stagetest.Port(v1.IPv4Protocol, i, 0)
		f := stagetest.NodePort(v1.IPv4Protocol, uint16(dividedPort(i)))
		if hosts > 10 {
			f.FromOutside = stagetest.Forward(proxy.MasqueradeNever)
		}
		p.Frontends = append(p.Frontends, f)
		p.Cluster = objects.Many(hosts, func(k int) *endpoints.Endpoint { return stagetest.Endpoint(v1.IPv4Protocol, 1+first+k, 8080) })
		return p
	})...)
}

// Operations in the order of a division are the same ones, each frontend's are together between
// what is made before and what is removed after, and only a frontend alone is divided.
func TestDivision(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	for range testenv.Rounds(200) {
		ops := randomOps(r)
		s := sequence{ops: ops}
		s.groupByFrontend(0, len(ops))
		for i, at := range s.indexes {
			if s.ops[i] != ops[at] {
				t.Fatalf("operation %d: got %v, want operation %d of %v", i, s.ops[i], at, ops)
			}
		}
		if sorted := slices.Sorted(slices.Values(s.indexes)); len(sorted) != len(ops) || len(slices.Compact(sorted)) != len(ops) {
			t.Fatalf("indexes: got %v, want each of %d once", s.indexes, len(ops))
		}
		for i := range s.ops[1:] {
			if stageOf(&s.ops[i]) > stageOf(&s.ops[i+1]) {
				t.Fatalf("stages: got %v, want them in ascending order", s.ops)
			}
		}
		checkMiddles(t, s.ops)
	}
}

// checkMiddles divides until nothing is left to divide.
func checkMiddles(t *testing.T, ops []op) {
	t.Helper()
	if len(ops) < 2 {
		return
	}
	half := middle(ops)
	if half < 1 || half >= len(ops) {
		t.Fatalf("middle of %d operations: got %d", len(ops), half)
	}
	first, last := &ops[0], &ops[len(ops)-1]
	alone := first.Key.ofFrontend() && last.Key.ofFrontend() && compareFrontends(first, last) == 0
	a, b := &ops[half-1], &ops[half]
	if !alone && a.Key.ofFrontend() && b.Key.ofFrontend() && compareFrontends(a, b) == 0 {
		t.Fatalf("middle of %v: got %d, which divides a frontend", ops, half)
	}
	checkMiddles(t, ops[:half])
	checkMiddles(t, ops[half:])
}

func randomOps(r *rand.Rand) []op {
	kinds := []kind{kindSet, kindPickChain, kindEndpoint, kindHairpin, kindRecord, kindRestriction, kindFrontend}
	return objects.Many(2+r.IntN(40), func(i int) op {
		k := key{kind: kinds[r.IntN(len(kinds))], fam: nfnetlink.IPv4, eport: uint16(i)}
		if k.ofFrontend() {
			k.port, k.addr[0] = uint16(r.IntN(4)), byte(r.IntN(2))
		}
		return op{Kind: backends.OpKind(r.IntN(3)), Key: k}
	})
}
