package allocator

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestFreed begins requests that end in any order, and frees keys meanwhile. freed must
// have the keys that were freed since a request began until it ends, and few older ones.
func TestFreed(t *testing.T) {
	type request struct {
		turn  int
		freed map[Key]Version
	}
	rnd := testenv.Random(t)
	var f freed
	var waiting []request
	for version := Version(1); version < 20_000; version++ {
		switch {
		case len(waiting) < 1+rnd.IntN(8): // A request is nearly always in flight.
			waiting = append(waiting, request{f.beginRequest(), map[Key]Version{}})
		case rnd.IntN(2) == 0:
			at := rnd.IntN(len(waiting))
			for k, v := range waiting[at].freed {
				if !f.has(Claim{Key: k, Version: v}) {
					t.Fatalf("%v was freed by change %d while a request was in flight: got has false, want true", k, v)
				}
			}
			f.endRequest(waiting[at].turn)
			waiting = append(waiting[:at], waiting[at+1:]...)
		default:
			k := PortKey(uint16(1 + rnd.IntN(60_000)))
			f.note(k, version)
			for _, w := range waiting {
				w.freed[k] = version
			}
			if f.has(Claim{Key: k, Version: version + 1}) {
				t.Fatalf("has of a claim of version %d after the deletion at %d: got true, want false", version+1, version)
			}
		}
		if n := len(f.keys[0]) + len(f.keys[1]); n > 1000 {
			t.Fatalf("keys in freed while no request takes long: got %d, want at most 1000", n)
		}
	}
	for _, w := range waiting {
		f.endRequest(w.turn)
	}
	if f.note(PortKey(1), 1); len(f.keys[0])+len(f.keys[1]) > 0 {
		t.Errorf("keys in freed without a request in flight: got %v, want none", f.keys)
	}
}
