package filestore

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
)

// TestInvalidChangesAreRefused reads frames with changes that no store writes. Such a claim
// would have no owner who can release it, so the frame counts as damaged.
func TestInvalidChangesAreRefused(t *testing.T) {
	t.Parallel()
	good := allocator.Claim{Key: allocator.PortKey(1), Owner: "me", Token: 1, Version: 7}
	ownerless, unwritten, keyless := good, good, good
	ownerless.Owner, unwritten.Version, keyless.Key = "", 0, allocator.Key{}
	for name, c := range map[string]struct {
		claim   allocator.Claim
		deleted bool
		isGood  bool
	}{
		"good":               {claim: good, isGood: true},
		"without an owner":   {claim: ownerless},
		"without a version":  {claim: unwritten},
		"without a key":      {claim: keyless},
		"deletion":           {claim: ownerless, deleted: true, isGood: true},
		"deletion of no key": {claim: keyless, deleted: true},
	} {
		body := appendChange(nil, allocator.Event{Claim: c.claim, Deleted: c.deleted})
		if changes, err := readChanges(body); (err == nil) != c.isGood {
			t.Errorf("%s: got %v, error %v, want one: %t", name, changes, err, !c.isGood)
		}
	}
}

// FuzzReplay reads any bytes as a file. The state that it reads must be the same after it
// was written and read again.
func FuzzReplay(f *testing.F) {
	key := allocator.PortKey(30000)
	h := head{salt: 7}
	start := h.bytes()
	f.Add(start)
	f.Add(h.appendFrame(start, []allocator.Event{
		{Claim: allocator.Claim{Key: key, Owner: "me", Token: 3, Version: 1, Since: time.Unix(1, 2).UTC()}},
		{Claim: allocator.Claim{Key: key, Version: 2}, Deleted: true},
	}))
	f.Fuzz(func(t *testing.T, content []byte) {
		// Random bytes hardly ever have a valid checksum, so try them as a body, too.
		framed := append(head{salt: 7}.bytes(), make([]byte, frameHead)...)
		framed = append(framed, content...)
		head{salt: 7}.seal(framed[headSize:])
		for _, c := range [][]byte{content, framed} {
			checkReplay(t, c)
		}
	})
}

func checkReplay(t *testing.T, content []byte) {
	h, state, end, err := replay(content)
	if err != nil {
		return
	}
	if end > len(content) || end < headSize {
		t.Fatalf("end of the last frame: got %d of %d bytes", end, len(content))
	}
	var events []allocator.Event
	for _, c := range state.Claims {
		events = append(events, allocator.Event{Claim: c})
	}
	_, again, _, err := replay(h.appendFrame(head{salt: h.salt}.bytes(), events))
	if err != nil {
		t.Fatalf("reading the state that was written again: %v", err)
	}
	byKey := func(s allocator.State) map[string]allocator.Claim {
		m := map[string]allocator.Claim{}
		for _, c := range s.Claims {
			m[c.Key.String()] = c
		}
		return m
	}
	same := cmp.Comparer(func(a, b allocator.Claim) bool { return a == b })
	if diff := cmp.Diff(byKey(state), byKey(again), same); diff != "" {
		t.Errorf("claims written and read again (-want +got):\n%s", diff)
	}
}
