package proxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// heardOf returns Snapshot.Heard as text, with times in seconds since a time: the Service, when
// it changed, when its slices changed, and the triggers.
func heardOf(s Snapshot, since time.Time) (out []string) {
	at := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return fmt.Sprint(t.Sub(since).Seconds())
	}
	for h := range s.Heard() {
		text := h.Name.Name + " " + at(h.Service) + " " + at(h.EndpointSlice)
		for _, family := range h.Triggers {
			text += " |"
			for _, t := range family {
				text += " " + at(t)
			}
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

func next(t *testing.T, tr *tracker, after Snapshot) Snapshot {
	t.Helper()
	s, err := tr.Next(t.Context(), after)
	testenv.NoError(t, err)
	return s
}

// hearingTest is a tracker with the Services a and b, made one second after begin.
type hearingTest struct {
	*tracker
	begin time.Time
	first Snapshot
}

func startHearing(t *testing.T) *hearingTest {
	t.Helper()
	x := &hearingTest{begin: time.Now()}
	time.Sleep(time.Second)
	x.tracker = newTestTracker()
	x.UpdateService(apiService("a", "10.96.0.1"))
	x.UpdateService(apiService("b", "10.96.0.2"))
	x.first = next(t, x.tracker, Snapshot{})
	x.want(t, "the first snapshot is no change", x.first)
	return x
}

func (x *hearingTest) want(t *testing.T, what string, s Snapshot, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, heardOf(s, x.begin)); diff != "" {
		t.Errorf("%s: heard (-want +got):\n%s", what, diff)
	}
}

// triggered updates a slice of Service a whose pods changed at a time.
func (x *hearingTest) triggered(address string, at time.Duration) {
	s := apiSlice("a-"+strings.ReplaceAll(address, ":", "-"), "a", address)
	s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: x.begin.Add(at).Format(time.RFC3339Nano)}
	x.UpdateEndpointSlice(s)
}

// A snapshot has the time of the first change of each Service, by kind of object.
func TestHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startHearing(t)
		time.Sleep(time.Second) // 2
		x.triggered("10.0.0.1", 1500*time.Millisecond)
		time.Sleep(time.Second) // 3
		x.triggered("10.0.0.2", 2500*time.Millisecond)
		x.triggered("10.0.0.3", 0) // before the tracker was made
		x.triggered("2001:db8::1", time.Second+1)
		x.triggered("2001:db8::2", time.Second) // when it was made
		x.UpdateService(apiService("a", "10.96.0.9"))
		x.UpdateService(apiService("b", "10.96.0.2")) // no change
		x.UpdateEndpointSlice(apiSlice("of-none", "none", "10.0.0.3"))
		second := next(t, x.tracker, x.first)
		x.want(t, "two kinds", second, "a 3 2 | 1.5 2.5 | 1.000000001 1")
		x.want(t, "the same, called again", next(t, x.tracker, x.first), "a 3 2 | 1.5 2.5 | 1.000000001 1")
		x.want(t, "after the zero snapshot", next(t, x.tracker, Snapshot{}))

		time.Sleep(time.Second) // 4
		x.DeleteService(types.NamespacedName{Namespace: "ns", Name: "b"})
		x.want(t, "a deleted Service", next(t, x.tracker, second), "b 4 - | |")
		x.want(t, "the snapshot before stays as it is", second, "a 3 2 | 1.5 2.5 | 1.000000001 1")
	})
}

// Heard has all changes since the snapshot that Next was called with, each Service once, and
// none for a change of the node.
func TestHeardSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startHearing(t)
		x.UpdateService(apiService("c", "10.96.0.3"))
		second := next(t, x.tracker, x.first)
		time.Sleep(time.Second) // 2
		x.UpdateService(apiService("d", "10.96.0.4"))
		third := next(t, x.tracker, x.first)
		x.want(t, "of two snapshots", third, "c 1 - | |", "d 2 - | |")
		x.want(t, "of the first of them", second, "c 1 - | |")
		x.UpdateService(apiService("d", "10.96.0.5"))
		fourth := next(t, x.tracker, third)
		x.want(t, "of the newest alone", fourth, "d 2 - | |")
		e := apiService("e", "10.96.0.6")
		e.Spec.Ports = append(e.Spec.Ports, v1.ServicePort{Name: "other", Protocol: v1.ProtocolUDP, Port: 53})
		x.UpdateService(e)
		fifth := next(t, x.tracker, fourth)
		x.want(t, "of a Service of two ports", fifth, "e 2 - | |")
		x.UpdateNode(objects.Node("here", "zone", "192.168.0.2"))
		sixth := next(t, x.tracker, fifth)
		x.want(t, "of none, though the node changes", sixth)
		if sixth.node.Equal(fifth.node) {
			t.Error("the node has not changed")
		}
	})
}

// The number of recorded changes is limited, however many there are and whether or not Next
// is called.
func TestHeardIsBounded(t *testing.T) {
	tr := newTestTracker()
	last := next(t, tr, Snapshot{})
	for i := range 3 * maxTriggers {
		s := apiSlice("a-1", "a", "10.0.0.1")
		s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: time.Now().Add(time.Hour).Format(time.RFC3339Nano)}
		s.AddressType = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[i%2]
		tr.UpdateEndpointSlice(s)
	}
	x := tr.changeLog.open[types.NamespacedName{Namespace: "ns", Name: "a"}]
	if got := len(x.Triggers[0]) + len(x.Triggers[1]); got != maxTriggers {
		t.Errorf("got %d triggers, want %d", got, maxTriggers)
	}
	for i := range maxHeard + 10 {
		tr.DeleteService(types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(i)})
	}
	if got := len(tr.changeLog.open); got != maxHeard {
		t.Errorf("got changes of %d Services, want %d", got, maxHeard)
	}
	tr.changeLog.done()
	for i := range 3 * maxHeard / 2 {
		name := types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(i)}
		tr.changeLog.service(name)
		tr.changeLog.publish(name, last.generation+uint64(i)+1)
	}
	if got := tr.changeLog.published; len(got) != maxHeard || got[len(got)-1].Name.Name != fmt.Sprint(3*maxHeard/2-1) {
		t.Errorf("got %d changes in snapshots, want the last %d", len(got), maxHeard)
	}
	last.generation += 2 * maxHeard
	if tr.changeLog.take(last); cap(tr.changeLog.published) > 1024 {
		t.Errorf("got capacity for %d changes that no snapshot needs, want at most 1024", cap(tr.changeLog.published))
	}
}

// Every change is counted; one that is in a snapshot, or makes no difference, is not pending.
func TestChangeCounts(t *testing.T) {
	tr := NewServiceChangeTracker(TrackerOptions{}).(*tracker) //nolint:errcheck // it is one
	want := func(what string, wantTotal, wantPending [2]uint64) {
		t.Helper()
		if total, pending := tr.ChangeCounts(); total != wantTotal || pending != wantPending {
			t.Errorf("%s: got %d changes, %d pending, want %d and %d", what, total, pending, wantTotal, wantPending)
		}
	}
	tr.UpdateService(apiService("a", "10.96.0.1"))
	tr.UpdateEndpointSlice(apiSlice("a-1", "a", "10.0.0.1"))
	tr.UpdateService(nil)
	tr.UpdateEndpointSlice(nil)
	tr.DeleteEndpointSlice(types.NamespacedName{Namespace: "ns", Name: "none"})
	want("before Synced", [2]uint64{1, 2}, [2]uint64{1, 2})
	tr.Synced()
	first := next(t, tr, Snapshot{})
	want("in a snapshot", [2]uint64{1, 2}, [2]uint64{})
	tr.UpdateService(apiService("b", "10.96.0.2"))
	tr.DeleteService(types.NamespacedName{Namespace: "ns", Name: "b"})
	want("received", [2]uint64{3, 2}, [2]uint64{2, 0})
	if s, wait := tr.poll(first, tr.changeLog.take); wait == nil {
		t.Errorf("got generation %d, want none: nothing has changed", s.generation)
	}
	want("without a difference", [2]uint64{3, 2}, [2]uint64{})
}

// TestSecondRunner checks that a second Runner takes no changes away from the first one.
func TestSecondRunner(t *testing.T) {
	tr := NewServiceChangeTracker(TrackerOptions{}).(*tracker) //nolint:errcheck // it is one
	second := runState{Runner: &Runner{Source: tr, Second: true}}
	tr.Synced()
	first := next(t, tr, Snapshot{})
	second.want = first
	for name, ip := range map[string]string{"a": "10.96.0.1", "b": "10.96.0.2"} {
		tr.UpdateService(apiService(name, ip))
		s, err := second.nextSnapshot(t.Context())
		testenv.NoError(t, err)
		for h := range s.Heard() {
			t.Errorf("the second Runner got the times of %v, want none", h.Name)
		}
		second.want = s
	}
	if _, pending := tr.ChangeCounts(); pending != [2]uint64{2, 0} {
		t.Errorf("before the first Runner has asked: got %d pending, want 2", pending)
	}
	got := map[string]bool{}
	for h := range next(t, tr, first).Heard() {
		got[h.Name.Name] = true
	}
	if !got["a"] || !got["b"] {
		t.Errorf("the first Runner got the times of %v, want a and b", got)
	}
	if _, pending := tr.ChangeCounts(); pending != [2]uint64{} {
		t.Errorf("after the first Runner has asked: got %d pending, want none", pending)
	}
}

// Load balancers may use the node once its object is known and does not exclude it.
func TestNodeEligible(t *testing.T) {
	node := func(name string, edit func(*v1.Node)) *v1.Node {
		n := &v1.Node{}
		n.Name = name
		edit(n)
		return n
	}
	taint := func(key string) func(*v1.Node) {
		return func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "other"}, {Key: key}} }
	}
	plain := func(*v1.Node) {}
	tr := NewServiceChangeTracker(TrackerOptions{NodeName: "node-1"}).(*tracker) //nolint:errcheck // it is one
	for i, step := range []struct {
		node *v1.Node
		want bool
	}{
		{node("other", plain), false},
		{node("node-1", plain), true},
		{node("node-1", taint("ToBeDeletedByClusterAutoscaler")), false},
		{node("other", plain), false},
		{node("node-1", taint("any")), true},
		{node("node-1", func(n *v1.Node) {
			n.DeletionTimestamp = &n.CreationTimestamp
			n.DeletionTimestamp.Time = time.Unix(1, 0)
		}), false},
		{node("node-1", plain), true},
		{nil, false},
	} {
		if tr.UpdateNode(step.node); tr.NodeEligible() != step.want {
			t.Errorf("step %d: eligible: got %t, want %t", i, !step.want, step.want)
		}
	}
	if tr := NewServiceChangeTracker(TrackerOptions{}).(*tracker); !tr.NodeEligible() { //nolint:errcheck // it is one
		t.Error("without NodeName: got not eligible, want eligible")
	}
}
