package allocator

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

// TestFreed asks for answers that come in any order, and frees keys meanwhile. What is freed
// must be known to all that were asked for before, and be forgotten when that is long ago.
func TestFreed(t *testing.T) {
	type answer struct {
		turn  int
		freed map[Key]Version
	}
	rnd := testenv.Random(t)
	var f freed
	var waiting []answer
	for version := Version(1); version < 20_000; version++ {
		switch {
		case len(waiting) < 1+rnd.IntN(8): // There is nearly always one.
			waiting = append(waiting, answer{f.ask(), map[Key]Version{}})
		case rnd.IntN(2) == 0:
			at := rnd.IntN(len(waiting))
			for k, v := range waiting[at].freed {
				if !f.has(Claim{Key: k, Version: v}) {
					t.Fatalf("%v was freed by change %d, while an answer was on its way, and that is not known", k, v)
				}
			}
			f.answered(waiting[at].turn)
			waiting = append(waiting[:at], waiting[at+1:]...)
		default:
			k := PortKey(uint16(1 + rnd.IntN(60_000)))
			f.note(k, version)
			for _, w := range waiting {
				w.freed[k] = version
			}
			if f.has(Claim{Key: k, Version: version + 1}) {
				t.Fatalf("a claim of version %d is taken for gone by change %d", version+1, version)
			}
		}
		if n := len(f.keys[0]) + len(f.keys[1]); n > 1000 {
			t.Fatalf("%d keys are remembered although no answer takes long", n)
		}
	}
	for _, w := range waiting {
		f.answered(w.turn)
	}
	if f.note(PortKey(1), 1); len(f.keys[0])+len(f.keys[1]) > 0 {
		t.Errorf("%v is remembered for nobody", f.keys)
	}
}
