package stagetest

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Rendering is something to render: a port, or nil, in a world.
type Rendering struct {
	Env  backends.Env
	Port *proxy.ServicePort
}

// RunPurity renders everything many times at once, in any order, with one renderer, and requires what
// a renderer gives that renders nothing else. In one world, all service ports must render a shared object with one
// value. Open makes a renderer, and what its backend writes for
// objects, which is the same whichever renderer made them.
func RunPurity[K backends.Key, V comparable](
	t *testing.T, r *rand.Rand, all []Rendering, open func() (backends.Render[K, V], func([]backends.Object[K, V]) string),
) {
	t.Helper()
	const least, compared = 400, 50 // renderings of each goroutine, and of how many it compares what is written
	want := make([][]backends.Object[K, V], len(all))
	for i, x := range all {
		render, _ := open()
		want[i] = render(x.Env, x.Port, nil)
	}
	haveOneValue(t, all, want)
	render, write := open()
	_, writeOther := open()
	var wg sync.WaitGroup
	for range 8 {
		order := r.Perm(max(len(all), least/len(all)*len(all)))
		wg.Go(func() {
			for n, i := range order {
				i %= len(all)
				got := render(all[i].Env, all[i].Port, nil)
				if !slices.EqualFunc(got, want[i], func(a, b backends.Object[K, V]) bool { return a.Key == b.Key && a.Value == b.Value }) {
					t.Errorf("rendering %d, port %v: got %v, want %v", i, all[i].Port, got, want[i])
				}
				if n < compared && write(got) != writeOther(want[i]) {
					t.Errorf("rendering %d, port %v: what is written for its objects differs from another renderer", i, all[i].Port)
				}
			}
		})
	}
	wg.Wait()
}

// haveOneValue requires that shared objects that were rendered in one world have one value.
func haveOneValue[K backends.Key, V comparable](t *testing.T, all []Rendering, rendered [][]backends.Object[K, V]) {
	t.Helper()
	var worlds []backends.Env
	var values []map[K]V
	for i, x := range all {
		at := slices.IndexFunc(worlds, func(e backends.Env) bool { return reflect.DeepEqual(e, x.Env) })
		if at < 0 {
			at, worlds, values = len(worlds), append(worlds, x.Env), append(values, map[K]V{})
		}
		for _, o := range rendered[i] {
			if v, known := values[at][o.Key]; known && o.Key.Shared() && v != o.Value {
				t.Errorf("rendering %d, shared object %v: got value %v, want %v as another service port has it", i, o.Key, o.Value, v)
			}
			values[at][o.Key] = o.Value
		}
	}
}
