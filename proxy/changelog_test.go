package proxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// timesOf returns Snapshot.ChangeTimes as text, with times in seconds since a time: the Service, when
// it changed, when its slices changed, and the triggers.
func timesOf(s Snapshot, since time.Time) (out []string) {
	at := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return fmt.Sprint(t.Sub(since).Seconds())
	}
	for h := range s.ChangeTimes() {
		text := h.Name.Name + " " + at(h.Service) + " " + at(h.EndpointSlice)
		for _, family := range [][]time.Time{h.TriggersIPv4, h.TriggersIPv6} {
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

func next(t *testing.T, tr *ServiceChangeTracker, after Snapshot) Snapshot {
	t.Helper()
	s, err := tr.Next(t.Context(), after)
	testenv.NoError(t, err)
	return s
}

// timesTest is a tracker with the Services a and b, made one second after begin.
type timesTest struct {
	*ServiceChangeTracker
	begin time.Time
	first Snapshot
}

func startTimes(t *testing.T) *timesTest {
	t.Helper()
	x := &timesTest{begin: time.Now()}
	time.Sleep(time.Second)
	x.ServiceChangeTracker = newTestTracker()
	x.UpdateService(apiService("a", "10.96.0.1"))
	x.UpdateService(apiService("b", "10.96.0.2"))
	x.first = next(t, x.ServiceChangeTracker, Snapshot{})
	x.want(t, "the first snapshot is no change", x.first)
	return x
}

func (x *timesTest) want(t *testing.T, what string, s Snapshot, want ...string) {
	t.Helper()
	testenv.Same(t, want, timesOf(s, x.begin), "%s: times", what)
}

// triggered updates a slice of Service a whose pods changed at a time.
func (x *timesTest) triggered(address string, at time.Duration) {
	s := apiSlice("a-"+strings.ReplaceAll(address, ":", "-"), "a", address)
	s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: x.begin.Add(at).Format(time.RFC3339Nano)}
	x.UpdateEndpointSlice(s)
}

// A snapshot has the time of the first change of each Service, by kind of object.
func TestChangeTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startTimes(t)
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
		second := next(t, x.ServiceChangeTracker, x.first)
		x.want(t, "two kinds", second, "a 3 2 | 1.5 2.5 | 1.000000001 1")
		x.want(t, "the same, called again", next(t, x.ServiceChangeTracker, x.first), "a 3 2 | 1.5 2.5 | 1.000000001 1")
		x.want(t, "after the zero snapshot", next(t, x.ServiceChangeTracker, Snapshot{}))

		time.Sleep(time.Second) // 4
		x.DeleteService(types.NamespacedName{Namespace: "ns", Name: "b"})
		x.want(t, "a deleted Service", next(t, x.ServiceChangeTracker, second), "b 4 - | |")
		x.want(t, "the snapshot before stays as it is", second, "a 3 2 | 1.5 2.5 | 1.000000001 1")
	})
}

// ChangeTimes has all changes since the snapshot that Next was called with, each Service once, and
// none for a change of the node.
func TestChangeTimesSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startTimes(t)
		x.UpdateService(apiService("c", "10.96.0.3"))
		second := next(t, x.ServiceChangeTracker, x.first)
		time.Sleep(time.Second) // 2
		x.UpdateService(apiService("d", "10.96.0.4"))
		third := next(t, x.ServiceChangeTracker, x.first)
		x.want(t, "of two snapshots", third, "c 1 - | |", "d 2 - | |")
		x.want(t, "of the first of them", second, "c 1 - | |")
		x.UpdateService(apiService("d", "10.96.0.5"))
		fourth := next(t, x.ServiceChangeTracker, third)
		x.want(t, "of the newest alone", fourth, "d 2 - | |")
		e := apiService("e", "10.96.0.6")
		e.Spec.Ports = append(e.Spec.Ports, v1.ServicePort{Name: "other", Protocol: v1.ProtocolUDP, Port: 53})
		x.UpdateService(e)
		fifth := next(t, x.ServiceChangeTracker, fourth)
		x.want(t, "of a Service of two ports", fifth, "e 2 - | |")
		x.UpdateNode(objects.Node("here", "zone", "192.168.0.2"))
		sixth := next(t, x.ServiceChangeTracker, fifth)
		x.want(t, "of none, though the node changes", sixth)
		if sixth.node.Equal(fifth.node) {
			t.Error("the node has not changed")
		}
	})
}

// Any number of consumers get all times and counts, however late, and take nothing from each other.
func TestConsumersTakeNothingFromEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startTimes(t)
		fast := x.first
		var all []string
		for i := range 3 {
			time.Sleep(time.Second)
			name := fmt.Sprint("s", i)
			x.UpdateService(apiService(name, fmt.Sprintf("10.96.1.%d", i)))
			if n := x.Pending(x.first).Services; n != uint64(i+1) {
				t.Errorf("consumer that lags: got %d changes pending, want %d", n, i+1)
			}
			fast = next(t, x.ServiceChangeTracker, fast)
			text := fmt.Sprintf("%s %d - | |", name, 2+i)
			x.want(t, "consumer that does not lag", fast, text)
			all = append(all, text)
			if n := x.Pending(fast).Services; n != 0 {
				t.Errorf("consumer that does not lag: got %d changes pending, want none", n)
			}
		}
		for range 2 { // Two consumers.
			late := next(t, x.ServiceChangeTracker, x.first)
			x.want(t, "consumer that lags", late, all...)
			if n := x.Pending(late).Services; n != 0 {
				t.Errorf("consumer that has caught up: got %d changes pending, want none", n)
			}
		}
	})
}

// A consumer that appends to the times of triggers changes nothing for another one.
func TestTriggersAreNotShared(t *testing.T) {
	name := types.NamespacedName{Name: "a"}
	roomy := make([]time.Time, 1, 4)
	l := changeLog{open: map[types.NamespacedName]ChangeTimes{name: {Name: name, TriggersIPv4: roomy, TriggersIPv6: roomy}}}
	l.publish(name)
	for _, triggers := range [...][]time.Time{l.times[0].TriggersIPv4, l.times[0].TriggersIPv6} {
		_ = append(triggers, time.Unix(1, 0))
		if !roomy[:2][1].IsZero() {
			t.Error("a consumer has written to the times of others")
		}
	}
}

// The number of recorded changes is limited, however many there are and whether or not Next
// is called.
func TestChangeTimesAreBounded(t *testing.T) {
	tr := newTestTracker()
	next(t, tr, Snapshot{})
	for i := range 3 * maxTriggers {
		s := apiSlice("a-1", "a", "10.0.0.1")
		s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: time.Now().Add(time.Hour).Format(time.RFC3339Nano)}
		s.AddressType = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[i%2]
		tr.UpdateEndpointSlice(s)
	}
	x := tr.changeLog.open[types.NamespacedName{Namespace: "ns", Name: "a"}]
	if got := len(x.TriggersIPv4) + len(x.TriggersIPv6); got != maxTriggers {
		t.Errorf("got %d triggers, want %d", got, maxTriggers)
	}
	for i := range maxOpen + 10 {
		tr.DeleteService(types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(i)})
	}
	if got := len(tr.changeLog.open); got != maxOpen {
		t.Errorf("got changes of %d Services, want %d", got, maxOpen)
	}
}

// A consumer that lags behind by too many changes gets the times of the last ones, and the number
// of the others; one that lags by one snapshot gets all.
func TestDroppedChangeTimes(t *testing.T) {
	const each, rounds = 500, 100
	var l changeLog
	l.open, l.recording = map[types.NamespacedName]ChangeTimes{}, true
	first := Snapshot{received: l.since(Snapshot{})}
	last := first
	longest := 0
	for i := range rounds {
		earlier := l.recorded
		for j := range each {
			name := types.NamespacedName{Name: fmt.Sprint(i*each + j)}
			l.service(name)
			l.publish(name)
		}
		l.done(earlier, true)
		longest = max(longest, len(l.times))
		newest := l.since(last)
		if newest.dropped != 0 || len(newest.times) != each || newest.times[0].Name.Name != fmt.Sprint(i*each) {
			t.Fatalf("after one snapshot: got %d times, %d dropped, want %d from %d on", len(newest.times), newest.dropped, each, i*each)
		}
		last.received = newest
	}
	late := Snapshot{received: l.since(first)}
	got := slices.Collect(late.ChangeTimes())
	if len(got) < maxEarlier || uint64(len(got))+late.DroppedChangeTimes() != rounds*each {
		t.Errorf("got %d times, %d dropped, want %d in all, and at least %d times", len(got), late.DroppedChangeTimes(), rounds*each, maxEarlier)
	}
	if end := got[len(got)-1].Name.Name; end != fmt.Sprint(rounds*each-1) {
		t.Errorf("got %q as the last change, want %d", end, rounds*each-1)
	}
	if longest > 2*(maxEarlier+each) {
		t.Errorf("got %d times kept, want at most %d", longest, 2*(maxEarlier+each))
	}
}

// Every change is counted; one that is in a snapshot, or makes no difference, is not pending.
func TestPending(t *testing.T) {
	tr := NewServiceChangeTracker(TrackerOptions{})
	want := func(what string, s Snapshot, wantTotal, wantPending ChangeCounts) {
		t.Helper()
		if total, pending := tr.Received(), tr.Pending(s); total != wantTotal || pending != wantPending {
			t.Errorf("%s: got %v changes, %v pending, want %v and %v", what, total, pending, wantTotal, wantPending)
		}
	}
	tr.UpdateService(apiService("a", "10.96.0.1"))
	tr.UpdateEndpointSlice(apiSlice("a-1", "a", "10.0.0.1"))
	tr.UpdateService(nil)
	tr.UpdateEndpointSlice(nil)
	tr.DeleteEndpointSlice(types.NamespacedName{Namespace: "ns", Name: "none"})
	want("before Synced", Snapshot{}, ChangeCounts{1, 2}, ChangeCounts{1, 2})
	tr.Synced()
	first := next(t, tr, Snapshot{})
	want("in a snapshot", first, ChangeCounts{1, 2}, ChangeCounts{})
	want("without a snapshot", Snapshot{}, ChangeCounts{1, 2}, ChangeCounts{1, 2})
	tr.UpdateService(apiService("b", "10.96.0.2"))
	tr.DeleteService(types.NamespacedName{Namespace: "ns", Name: "b"})
	want("received", first, ChangeCounts{3, 2}, ChangeCounts{2, 0})
	if s, wait := tr.poll(first); wait == nil {
		t.Errorf("got generation %d, want none: nothing has changed", s.generation)
	}
	want("without a difference", first, ChangeCounts{3, 2}, ChangeCounts{})
	tr.UpdateService(apiService("b", "10.96.0.2"))
	second := next(t, tr, first)
	want("in the next snapshot", second, ChangeCounts{4, 2}, ChangeCounts{})
	// Another consumer finds out that a change makes no difference, and then takes one that does.
	tr.UpdateEndpointSlice(apiSlice("a-1", "a", "10.0.0.1"))
	if s, wait := tr.poll(second); wait == nil {
		t.Errorf("got generation %d, want none: nothing has changed", s.generation)
	}
	tr.UpdateService(apiService("c", "10.96.0.3"))
	next(t, tr, second)
	want("after another consumer", second, ChangeCounts{5, 3}, ChangeCounts{1, 0})
	other := NewServiceChangeTracker(TrackerOptions{})
	other.Synced()
	want("of another tracker", next(t, other, Snapshot{}), ChangeCounts{5, 3}, ChangeCounts{5, 3})
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
	tr := NewServiceChangeTracker(TrackerOptions{NodeName: "node-1"})
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
	if tr := NewServiceChangeTracker(TrackerOptions{}); !tr.NodeEligible() {
		t.Error("without NodeName: got not eligible, want eligible")
	}
}
