package filestore

import (
	"testing"

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
