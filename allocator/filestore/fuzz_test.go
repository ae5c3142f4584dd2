package filestore

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
)

// FuzzReplay reads anything as a file. What it makes of it must survive being
// written again.
func FuzzReplay(f *testing.F) {
	key := allocator.PortKey(30000)
	f.Add([]byte(header))
	f.Add(appendFrame([]byte(header), []allocator.Event{
		{Claim: allocator.Claim{Key: key, Owner: "me", Token: 3, Version: 1, Since: time.Unix(1, 2).UTC()}},
		{Claim: allocator.Claim{Key: key, Version: 2}, Deleted: true},
	}))
	f.Fuzz(func(t *testing.T, content []byte) {
		// The checksum keeps nearly everything out, so try it as a body, too.
		for _, c := range [][]byte{content, seal(content)} {
			checkReplay(t, c)
		}
	})
}

func seal(body []byte) []byte {
	framed := appendFrame([]byte(header), nil)
	start := len(header)
	framed = append(framed, body...)
	copy(framed[start:], headOf(body))
	return framed
}

func headOf(body []byte) []byte {
	b := appendFrame(nil, nil)
	n, sum := uint32(len(body)), checksum(body)
	for i := range 4 {
		b[4+i], b[8+i] = byte(n>>(8*i)), byte(sum>>(8*i))
	}
	return b
}

func checkReplay(t *testing.T, content []byte) {
	state, end, err := replay(content)
	if err != nil {
		return
	}
	if end > len(content) || end < len(header) {
		t.Fatalf("the last frame ends at %d of %d", end, len(content))
	}
	var events []allocator.Event
	for _, c := range state.Claims {
		events = append(events, allocator.Event{Claim: c})
	}
	again, _, err := replay(appendFrame([]byte(header), events))
	if err != nil {
		t.Fatalf("what was read cannot be written: %v", err)
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
		t.Errorf("written and read again (-first +second):\n%s", diff)
	}
}
