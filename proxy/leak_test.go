package proxy

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// checkEmpty checks that a tracker keeps nothing after all objects were deleted.
func checkEmpty(t *testing.T, tr *ServiceChangeTracker) {
	t.Helper()
	s := newest(t, tr)
	if s.Len() != 0 || len(problemText(s)) != 0 {
		t.Errorf("with all objects gone: got ports %q and problems %q, want none of either", snapshotNames(s), problemText(s))
	}
	for what, n := range map[string]int{
		"services": len(tr.services), "claimed addresses": len(tr.claims.owners),
		"problems": tr.problems.findings.Map().Len(), "contested addresses": len(tr.claims.rivals),
		"ports to resolve": len(tr.dirty), "ports to remove": len(tr.removed),
	} {
		if n != 0 {
			t.Errorf("with all objects gone: got %d %s, want none", n, what)
		}
	}
	for _, p := range tr.dirty[:cap(tr.dirty)] {
		if p != nil {
			t.Errorf("with all objects gone: the work list still refers to %s", p.spec.name)
		}
	}
}

func TestUnknownRemovalsLeaveNothing(t *testing.T) {
	tr := newTestTracker()
	for i := range 1000 {
		tr.DeleteService(objectName(fmt.Sprint(i)))
		tr.DeleteEndpointSlice(objectName(fmt.Sprint(i)))
	}
	if len(tr.dirty)+len(tr.removed) != 0 {
		t.Errorf("unknown removals left %d ports to resolve and %d to remove, want none", len(tr.dirty), len(tr.removed))
	}
	checkEmpty(t, tr)
	if g := newest(t, tr).Generation(); g != 1 {
		t.Errorf("after unknown removals: got generation %d, want 1", g)
	}
}

// TestUnseenChangesLeaveNothing: changes that were reverted before Next is called leave nothing
// in the tracker's lists, however many there are.
func TestUnseenChangesLeaveNothing(t *testing.T) {
	tr := newTestTracker()
	tr.UpdateService(apiService("stays", "10.96.0.1", objects.ExternalIPs("198.51.100.1"), objects.Created(5)))
	newest(t, tr)
	for i := range 1000 {
		tr.UpdateService(apiService("changes", "10.96.0.2", objects.NodePort(int32(30000+i)), objects.ExternalIPs("198.51.100.1"), objects.Created(int64(i))))
		tr.UpdateService(apiService(fmt.Sprint("s", i), "10.96.0.3", objects.NodePort(30000)))
		tr.DeleteService(objectName(fmt.Sprint("s", i)))
		tr.DeleteService(objectName("stays"))
		tr.UpdateService(apiService("stays", "10.96.0.1", objects.ExternalIPs("198.51.100.1"), objects.Created(5)))
	}
	if len(tr.dirty) > 2 || len(tr.removed) > 0 {
		t.Errorf("got %d ports to resolve and %d to remove, want at most 2 and none", len(tr.dirty), len(tr.removed))
	}
	tr.DeleteService(objectName("changes"))
	tr.DeleteService(objectName("stays"))
	if len(tr.dirty) > 0 || len(tr.removed) != 1 {
		t.Errorf("got %d ports to resolve and %d to remove, want none and 1", len(tr.dirty), len(tr.removed))
	}
	checkEmpty(t, tr)
}

func TestCyclesLeaveNothing(t *testing.T) {
	tr := newTestTracker()
	for i := range 1000 {
		name := fmt.Sprint("s", i)
		tr.UpdateService(apiService(name, fmt.Sprintf("10.96.%d.%d", i/200, i%200+1), objects.ExternalIPs("198.51.100.1", "bad"), objects.NodePort(30080)))
		tr.UpdateEndpointSlice(apiSlice(name, name, "10.0.0.1", "bad"))
		if i%3 == 0 {
			newest(t, tr)
		}
		tr.DeleteService(objectName(name))
		tr.DeleteEndpointSlice(objectName(name))
	}
	checkEmpty(t, tr)
	runtime.KeepAlive(tr)
}
