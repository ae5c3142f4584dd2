package endpoints

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestCacheAgainstOracle(t *testing.T) {
	r := testenv.Random(t)
	const histories, steps = 30, 150
	for i := range histories {
		h := newHistory(rand.New(rand.NewPCG(r.Uint64(), 0)))
		for step := range steps {
			if problem := h.step(); problem != "" {
				t.Fatalf("history %d, step %d: %s", i, step, problem)
			}
		}
		checkCache(t, h.cache)
		if problem := h.checkReturned(); problem != "" {
			t.Fatalf("history %d: %s", i, problem)
		}
		for name := range h.oracle.objects {
			h.cache.Delete(name)
		}
		checkEmpty(t, h.cache)
	}
}

// history makes the same random calls of a Cache and of the oracle.
type history struct {
	objects.Generator
	cache   *Cache
	oracle  *oracle
	noticed map[ServicePortName]int
	// records are those of the oracle before the step.
	records map[ServicePortName][]*Endpoint
	// returned are lists that the Cache returned, with copies from that time.
	returned []returnedList
}

type returnedList struct {
	list   []*Endpoint
	copied []string
}

func newHistory(r *rand.Rand) *history {
	h := &history{Generator: objects.Generator{Rand: r, Unusual: 8, Scarce: true, Node: "here"}, noticed: map[ServicePortName]int{}}
	view := h.view()
	h.oracle = newOracle(view)
	h.cache = NewCache(view, func(k ServicePortName) { h.noticed[k]++ })
	return h
}

// step makes a random call and checks its effects. It returns a failure, or an empty text.
func (h *history) step() string {
	clear(h.noticed)
	exact := true
	switch h.IntN(10) {
	case 0:
		view := h.view()
		h.oracle.view = view
		h.cache.SetView(view)
		// The order of records of several slices may change.
		exact = false
	case 1, 2:
		name := sliceName(h.pick("0", "1", "2", "3", "4", "5", "unknown"))
		delete(h.oracle.objects, name)
		h.cache.Delete(name)
	default:
		name := sliceName(h.pick("0", "1", "2", "3", "4", "5"))
		s := h.Slice(name.String(), h.oracle.objects[name])
		h.oracle.update(s)
		object := s.DeepCopy()
		_ = h.cache.Update(s) // TestUpdateReads* checks the errors.
		if diff := cmp.Diff(object, s); diff != "" {
			return "Update changed the object (-before +after):\n" + diff
		}
	}
	now := h.oracle.records()
	if problem := h.checkNotices(now, exact); problem != "" {
		return problem
	}
	h.records = now
	// Without reading, one merge has to handle several changes.
	if h.IntN(3) == 0 {
		return h.checkEndpoints()
	}
	return ""
}

func (h *history) checkNotices(now map[ServicePortName][]*Endpoint, exact bool) string {
	for _, key := range keysOf(now, h.records, h.noticed) {
		changed := !slices.EqualFunc(now[key], h.records[key], same)
		switch n := h.noticed[key]; {
		case n > 1:
			return fmt.Sprintf("got %d calls of changed for %s in one call, want 1", n, keyText(key))
		case changed && n == 0:
			return fmt.Sprintf("got no call of changed for %s, which changed from %q to %q", keyText(key), text(h.records[key]), text(now[key]))
		case exact && !changed && n == 1:
			return fmt.Sprintf("got a call of changed for %s, which is unchanged: %q", keyText(key), text(now[key]))
		}
	}
	return ""
}

func keysOf(a, b map[ServicePortName][]*Endpoint, c map[ServicePortName]int) []ServicePortName {
	all := map[ServicePortName]bool{}
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	for k := range c {
		all[k] = true
	}
	var out []ServicePortName
	for k := range all {
		out = append(out, k)
	}
	return out
}

func (h *history) checkEndpoints() string {
	if got, want := len(h.cache.ports), len(h.records); got != want {
		return fmt.Sprintf("got %d ports, want %d", got, want)
	}
	for key, records := range h.records {
		got := h.cache.Endpoints(key)
		if diff := cmp.Diff(text(published(records)), text(got)); diff != "" {
			return fmt.Sprintf("endpoints of %s (-want +got):\n%s", keyText(key), diff)
		}
		h.returned = append(h.returned, returnedList{got, text(got)})
	}
	return ""
}

func (h *history) checkReturned() string {
	for _, r := range h.returned {
		if diff := cmp.Diff(r.copied, text(r.list)); diff != "" {
			return "a returned list has changed (-then +now):\n" + diff
		}
	}
	return ""
}

func (h *history) pick(from ...string) string { return objects.OneOf(h.Rand, from...) }

func (h *history) view() View {
	return View{NodeName: h.pick("", "here", "there"), Zone: h.pick("", "a", "b")}
}
