package pmap_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/vipkit/vipkit/internal/pmap"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestRandomHistory does random steps of all kinds and compares versions with a
// builtin map, at once and again after the last step.
func TestRandomHistory(t *testing.T) {
	for _, keys := range []int{3, 40, 300, 1_000} {
		t.Run(fmt.Sprintf("keys=%d", keys), func(t *testing.T) {
			w := walker{history: newHistory(), r: testenv.Random(t), keys: keys}
			w.keep()
			for range testenv.Rounds(1_000) {
				w.step(t)
				if w.r.IntN(20) == 0 {
					w.keep()
					w.now.check(t)
				}
				if w.r.IntN(4) == 0 {
					old := w.kept[w.r.IntN(len(w.kept))]
					checkDiff(t, old, w.now)
					checkDiff(t, w.now, old)
				}
			}
			w.end(t)
		})
	}
}

// walker does random steps in a history. It uses few values, so that a step often sets
// the value that a key already has.
type walker struct {
	*history
	r    *rand.Rand
	keys int
}

func (w *walker) key() key { return key(w.r.IntN(w.keys)) }

func (w *walker) step(t *testing.T) {
	t.Helper()
	switch n := w.r.IntN(100); {
	case n < 45:
		w.set(t, w.key(), w.r.IntN(3))
	case n < 75:
		w.delete(t, w.key())
	case n < 97:
		w.batches(t)
	default:
		w.back(w.r.IntN(len(w.kept)))
	}
}

// batches uses one Edit for up to three batches. The result of each is a version of
// its own that later batches must not change.
func (w *walker) batches(t *testing.T) {
	t.Helper()
	e := w.now.m.Edit()
	want := maps.Clone(w.now.want)
	for range 1 + w.r.IntN(3) {
		w.keep()
		for range w.r.IntN(1 + w.keys/5) {
			k := w.key()
			if w.r.IntN(5) < 2 {
				e.Delete(k)
				delete(want, k)
			} else {
				want[k] = w.r.IntN(3)
				e.Set(k, want[k])
			}
			k = w.key()
			got, ok := e.Get(k)
			if v, wantOK := want[k]; got != v || ok != wantOK {
				t.Fatalf("in a batch: Get(%d) = %d, %t, want %d, %t", k, got, ok, v, wantOK)
			}
		}
		w.now = version{e.Map(), maps.Clone(want)}
		w.now.check(t)
		checkDiff(t, w.kept[len(w.kept)-1], w.now)
	}
	// Changes that are not published must not change any version.
	e.Set(w.key(), 7)
	e.Delete(w.key())
}

// FuzzHistory reads steps of three bytes: an operation, a key and a value.
func FuzzHistory(f *testing.F) {
	f.Add([]byte{0, 1, 1, 0, 2, 1, 1, 1, 0, 4, 0, 0})
	f.Add([]byte{2, 9, 1, 2, 8, 1, 3, 8, 0, 4, 0, 0, 2, 8, 2, 5, 0, 0, 0, 7, 1})
	f.Fuzz(func(t *testing.T, steps []byte) {
		h := newHistory()
		h.keep()
		e, inBatch := h.now.m.Edit(), maps.Clone(h.now.want)
		for ; len(steps) >= 3 && len(h.kept) < 200; steps = steps[3:] {
			k, v := key(steps[1]), int(steps[2]%4)
			switch steps[0] % 6 {
			case 0:
				h.set(t, k, v)
			case 1:
				h.delete(t, k)
			case 2:
				e.Set(k, v)
				inBatch[k] = v
			case 3:
				e.Delete(k)
				delete(inBatch, k)
			case 4: // publish the batch; the Edit continues from the result
				h.now = version{e.Map(), maps.Clone(inBatch)}
				h.keep()
			case 5: // another batch
				h.keep()
				e, inBatch = h.now.m.Edit(), maps.Clone(h.now.want)
			}
		}
		h.end(t)
	})
}

// TestDiffOfOrigins compares maps that share nothing, as their priorities have
// different seeds.
func TestDiffOfOrigins(t *testing.T) {
	r := testenv.Random(t)
	for range 300 {
		a, b := newHistory(), newHistory()
		for range r.IntN(200) {
			k, v := key(r.IntN(100)), r.IntN(2)
			a.set(t, k, v)
			if r.IntN(3) > 0 {
				b.set(t, k, v)
			}
		}
		checkDiff(t, a.now, b.now)
		checkDiff(t, b.now, a.now)
		checkDiff(t, version{}, a.now)
		checkDiff(t, a.now, version{})
	}
}

// TestChosenPriorities checks trees of shapes that hashes do not give: equal
// priorities, and long paths.
func TestChosenPriorities(t *testing.T) {
	const keys = 200
	for name, prio := range map[string]func(key) uint32{
		"all equal":   func(key) uint32 { return 5 },
		"often equal": func(k key) uint32 { return uint32(k*7) % 4 },
		"left list":   func(k key) uint32 { return uint32(k) },
		"right list":  func(k key) uint32 { return uint32(keys - k) },
		"left comb":   func(k key) uint32 { return uint32(k) << (16 * (k % 2)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := testenv.Random(t)
			old := version{pmap.New[key, int](), map[key]int{}}
			for range 300 {
				e, want := old.m.Edit(), maps.Clone(old.want)
				for range r.IntN(20) {
					k := key(r.IntN(keys))
					if r.IntN(4) == 0 {
						e.Delete(k)
						delete(want, k)
					} else {
						want[k] = r.IntN(3)
						e.SetWithPriority(k, want[k], prio(k))
					}
				}
				now := version{e.Map(), want}
				if err := pmap.CheckTree(now.m); err != nil {
					t.Fatalf("broken tree: %v", err)
				}
				checkDiff(t, old, now)
				checkDiff(t, now, version{})
				old = now
			}
		})
	}
}
