package proxy

import (
	"fmt"
	"runtime"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// portsOf returns the ports of a Service and of its EndpointSlice.
func portsOf(n int) (edit, []discoveryv1.EndpointPort) {
	texts := objects.Many(n, func(i int) string { return fmt.Sprintf("p%d %d", i, 1+i) })
	return objects.Ports(texts...), objects.SlicePorts(texts...)
}

func manyAddrs(n int) []string {
	return objects.Many(n, func(i int) string { return fmt.Sprintf("10.%d.%d.%d", 1+i/62500, i/250%250, 1+i%250) })
}

// TestGrowth: the time that a tracker needs does not grow with the square of what a user can
// write.
func TestGrowth(t *testing.T) { //nolint:funlen // a table
	for _, tc := range []struct {
		name string
		from int
		do   func(n int)
	}{
		{"ports", 1000, func(n int) {
			tr := newTestTracker()
			inService, inSlice := portsOf(n)
			tr.UpdateService(apiService("web", "10.96.0.1", inService))
			s := apiSlice("web-1", "web", "10.1.0.1")
			s.Ports = inSlice
			tr.UpdateEndpointSlice(s)
			newest(t, tr)
		}},
		{"EndpointSlices of a Service", 500, func(n int) {
			const portCount = 20
			inService, inSlice := portsOf(portCount)
			tr := newTestTracker()
			tr.UpdateService(apiService("web", "10.96.0.1", inService))
			for i, addr := range manyAddrs(n) {
				s := apiSlice(fmt.Sprint("web-", i), "web", addr)
				s.Ports = inSlice
				tr.UpdateEndpointSlice(s)
			}
			newest(t, tr)
			for i := range n {
				tr.DeleteEndpointSlice(objectName(fmt.Sprint("web-", i)))
			}
		}},
		{"source ranges", 4000, func(n int) {
			var ranges []string
			for _, addr := range manyAddrs(n) {
				ranges = append(ranges, addr+"/32")
			}
			tr := newTestTracker()
			tr.UpdateService(apiService("web", "10.96.0.1", objects.LoadBalancer("203.0.113.1"), objects.SourceRanges(ranges...)))
			newest(t, tr)
		}},
		{"labels and annotations", 2000, func(n int) {
			many := make(map[string]string, n)
			for i := range n {
				many[fmt.Sprint("example.com/", i)] = "x"
			}
			tr := newTestTracker()
			s := apiService("web", "10.96.0.1")
			s.Labels, s.Annotations = many, many
			tr.UpdateService(s)
			slice := apiSlice("web-1", "web", "10.1.0.1")
			slice.Annotations = many
			tr.UpdateEndpointSlice(slice)
			newest(t, tr)
		}},
		{"Services with one address", 400, func(n int) {
			tr := newTestTracker()
			for i := range n {
				tr.UpdateService(apiService(fmt.Sprint("web-", i), "10.96.0.1"))
			}
			newest(t, tr)
			for i := range n { // the owner each time
				tr.DeleteService(objectName(fmt.Sprint("web-", i)))
				newest(t, tr)
			}
		}},
		{"Services with the same addresses", 50, func(n int) {
			shared := objects.ExternalIPs(manyAddrs(200)...)
			tr := newTestTracker()
			for i, addr := range manyAddrs(n) {
				tr.UpdateService(apiService(fmt.Sprint("web-", i), addr, shared))
			}
			newest(t, tr)
			for i := range n {
				tr.DeleteService(objectName(fmt.Sprint("web-", i)))
				newest(t, tr)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testenv.Growth(t, tc.from, func(n int) func() { return func() { tc.do(n) } })
		})
	}
}

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
