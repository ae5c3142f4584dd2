package filestore

import (
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// TestSenselessChangesAreRefused wants a frame to be damaged that is sound and says what no
// store writes: such a claim would be nobody's, and yet hold its key.
func TestSenselessChangesAreRefused(t *testing.T) {
	good := allocator.Claim{Key: allocator.PortKey(1), Owner: "me", Token: 1, Version: 7}
	nobody, unwritten, keyless := good, good, good
	nobody.Owner, unwritten.Version, keyless.Key = "", 0, allocator.Key{}
	for name, c := range map[string]struct {
		claim   allocator.Claim
		deleted bool
		isGood  bool
	}{
		"good":              {claim: good, isGood: true},
		"without an owner":  {claim: nobody},
		"without a version": {claim: unwritten},
		"without a key":     {claim: keyless},
		"deletion":          {claim: nobody, deleted: true, isGood: true},
		"of nothing":        {claim: keyless, deleted: true},
	} {
		body := appendChange(nil, allocator.Event{Claim: c.claim, Deleted: c.deleted})
		if changes, err := readChanges(body); (err == nil) != c.isGood {
			t.Errorf("%s: got %v, error %v, want one: %t", name, changes, err, !c.isGood)
		}
	}
}
