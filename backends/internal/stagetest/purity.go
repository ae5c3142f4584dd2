package stagetest

import (
	"math/rand/v2"
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
// a renderer gives that renders nothing else. Open makes a renderer, and what its backend writes for
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
					t.Errorf("rendering %d, port %v: its objects are written differently than those of another renderer", i, all[i].Port)
				}
			}
		})
	}
	wg.Wait()
}
