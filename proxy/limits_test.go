package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// limited is a backend that fails at random, and has limits for session affinity.
type limited struct {
	NoAbilities
	random *rand.Rand
	asked  int
}

func (b *limited) Apply(_ context.Context, old, new Snapshot) error {
	b.asked = 0
	switch b.random.IntN(6) {
	case 0:
		return errors.New("nothing was done")
	case 1:
		return ErrDataplaneLost
	case 2, 3:
		failed := PortErrors{}
		for c := range new.Changes(old) {
			if c.New != nil && b.random.IntN(2) == 0 {
				failed[c.New.Name] = errors.New("refused")
			}
		}
		if len(failed) > 0 && (old.IsZero() || old.Node().Equal(new.Node())) {
			return failed
		}
	}
	return nil
}

func (*limited) Cleanup(context.Context) error { return nil }

func (b *limited) Abilities() Abilities { return Abilities{CheckLimits: b.CheckLimits} }

func (b *limited) CheckLimits(node *Node, port *ServicePort) []*Problem {
	b.asked++
	return limitsOf(node, port)
}

// limitsOf makes limits that depend on the node and on endpoints.
func limitsOf(node *Node, port *ServicePort) []*Problem {
	if !port.Affinity.Enabled() {
		return nil
	}
	return []*Problem{{
		Kind: "Service", NamespacedName: port.Name.NamespacedName, Field: "spec.sessionAffinity",
		Err: fmt.Errorf("%v of %d endpoints are kept in zone %q", port.Affinity.Timeout, len(port.Cluster)/2, node.Zone),
	}}
}

// checkLimits compares the limits of a sync with those of all ports that are applied.
func checkLimits(t *testing.T, s, last Sync, asked int) {
	t.Helper()
	var want, got []string
	for p := range s.Applied.All() {
		for _, problem := range limitsOf(s.Applied.Node(), p) {
			want = append(want, problem.Error())
		}
	}
	for _, problem := range s.Limits {
		got = append(got, problem.Error())
	}
	testenv.Same(t, want, got, "limits of generation %d after error %v", s.Snapshot.Generation(), s.Err)
	checkEffort(t, s, last, asked)
}

// checkEffort compares the number of calls of CheckLimits with the number of changed ports,
// and checks that limits that did not change are the same Problems.
func checkEffort(t *testing.T, s, last Sync, asked int) {
	t.Helper()
	if ports := len(snapshotNames(s.Applied)); asked > ports {
		t.Errorf("calls of CheckLimits: got %d, want at most one for each of %d ports", asked, ports)
	}
	if s.Full || s.Applied.IsZero() || !s.Applied.Node().Equal(last.Applied.Node()) {
		return
	}
	changed := countChanges(last.Applied, s.Applied)
	if asked > changed {
		t.Errorf("calls of CheckLimits: got %d, want at most one for each of %d changed ports", asked, changed)
	}
	before := map[string]*Problem{}
	for _, problem := range last.Limits {
		before[problem.Error()] = problem
	}
	for _, problem := range s.Limits {
		if was := before[problem.Error()]; was != nil && was != problem {
			t.Errorf("%v: got another Problem for the same limit", problem)
		}
	}
	if changed == 0 && len(s.Limits) > 0 && &s.Limits[0] != &last.Limits[0] {
		t.Error("nothing has changed: got another list of limits, want the same")
	}
}

// TestLimitsFollowWhatIsApplied: also after failures, a sync has the limits of the ports that
// the dataplane holds, and CheckLimits is called only for those that changed.
func TestLimitsFollowWhatIsApplied(t *testing.T) {
	random := testenv.Random(t)
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		b := &limited{random: rand.New(rand.NewPCG(random.Uint64(), 1))}
		var last Sync
		syncs, ports := 0, 0
		r := &Runner{Source: tr, Backend: b, RetryInterval: time.Second, ResyncInterval: 20 * time.Second, Observers: []Observer{{Synced: func(s Sync) {
			checkLimits(t, s, last, b.asked)
			last = s
			syncs, ports = syncs+1, ports+len(s.Limits)
		}}}}
		stop := goRun(t, r)
		for range 500 {
			name := fmt.Sprint("web", random.IntN(6))
			switch random.IntN(8) {
			case 0:
				tr.DeleteService(objectName(name))
			case 1:
				tr.UpdateNode(objects.Node("here", []string{"", "a", "b"}[random.IntN(3)], "192.168.0.1"))
			case 2, 3, 4:
				tr.UpdateEndpointSlice(apiSlice(name, name, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}[:random.IntN(4)]...))
			default:
				tr.UpdateService(apiService(name, "10.96.0."+name[3:], func(s *v1.Service) {
					s.Spec.SessionAffinity = []v1.ServiceAffinity{v1.ServiceAffinityNone, v1.ServiceAffinityClientIP}[random.IntN(2)]
				}))
			}
			sleepAndWait(time.Duration(random.IntN(3000)) * time.Millisecond)
		}
		stop()
		if syncs < 300 || ports < 300 {
			t.Errorf("got %d syncs with %d limited ports in all, want at least 300 of each", syncs, ports)
		}
	})
}

// Without CheckLimits, a sync has no limits.
func TestNoLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, &Runner{}, nil)
		if len(x.syncs) != 1 || x.syncs[0].Limits != nil {
			t.Errorf("got syncs %+v, want one without limits", x.syncs)
		}
	})
}

// panicking is a backend whose CheckLimits panics for one Service.
type panicking struct{ limited }

func (*panicking) Apply(context.Context, Snapshot, Snapshot) error { return nil }

func (b *panicking) Abilities() Abilities { return Abilities{CheckLimits: b.CheckLimits} }

func (*panicking) CheckLimits(_ *Node, port *ServicePort) []*Problem {
	if port.Name.Name == "a" {
		panic("division by zero")
	}
	return []*Problem{{Kind: "Service", NamespacedName: port.Name.NamespacedName, Field: "spec", Err: errors.New("in part")}}
}

// A panic of CheckLimits does not end the Runner, fails no Apply, and hides no limits of
// other Services.
func TestLimitsThatPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		tr.UpdateService(apiService("a", "10.96.0.1"))
		tr.UpdateService(apiService("b", "10.96.0.2"))
		tr.Synced()
		var errs []error
		var limits []string
		r := &Runner{Source: tr, Backend: &panicking{}, Observers: []Observer{{Synced: func(s Sync) {
			errs = append(errs, s.Err)
			for _, p := range s.Limits {
				limits = append(limits, p.Error())
			}
		}}}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run: got error %v, want none", err)
		}
		testenv.Same(t, []error{nil}, errs, "errors of syncs")
		want := []string{"Service ns/a: spec: limits of ns/a:http/TCP/IPv4 are unknown: panic: division by zero", "Service ns/b: spec: in part"}
		testenv.Same(t, want, limits, "limits")
	})
}
