package kubewatch

import (
	"runtime"
	"testing"
	"weak"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Objects that were passed on are not kept: only their names are.
func TestNothingIsKept(t *testing.T) {
	h := newRecorder()
	e := &Events{Handler: h}
	p := &feed{events: e.EndpointSlices, inventories: []*inventory{&e.slices}, synced: func() {}}
	passOn := func() (all []weak.Pointer[discoveryv1.EndpointSlice]) {
		listed, watched := slice("a", "10.0.0.1"), slice("b", "10.0.0.2")
		testenv.NoError(t, p.Replace([]any{listed}, "1"))
		testenv.NoError(t, p.Add(watched))
		return append(all, weak.Make(listed), weak.Make(watched))
	}
	objects := passOn()
	runtime.GC()
	for i, o := range objects {
		if o.Value() != nil {
			t.Errorf("object %d is still in memory", i)
		}
	}
	if len(e.slices.known) != 2 {
		t.Errorf("got names %v, want two", e.slices.known)
	}
	runtime.KeepAlive(h)
}
