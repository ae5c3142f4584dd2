package storetest

import (
	"sync"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// Owners knows who has which key, and fails its test when one has two owners. It may
// be used by several goroutines.
type Owners struct {
	t        testing.TB
	mu       sync.Mutex
	held     map[allocator.Key]allocator.Owner
	bindings int
}

// NewOwners gives one that knows nobody.
func NewOwners(t testing.TB) *Owners {
	return &Owners{t: t, held: map[allocator.Key]allocator.Owner{}}
}

// Bound notes who has claims now; nobody may have had one of their keys.
func (o *Owners) Bound(claims []allocator.Claim) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bindings++
	for _, c := range claims {
		if other, isHeld := o.held[c.Key]; isHeld {
			o.t.Errorf("%v has two owners: %s and %s", c.Key, other, c.Owner)
		}
		o.held[c.Key] = c.Owner
	}
}

// Released notes that nobody has the claims any more.
func (o *Owners) Released(claims []allocator.Claim) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range claims {
		delete(o.held, c.Key)
	}
}

// Held gives who has what. Nobody may bind or release then.
func (o *Owners) Held() map[allocator.Key]allocator.Owner { return o.held }

// WantBindings wants as many calls of Bound at least: with fewer a test shows nothing.
func (o *Owners) WantBindings(least int) {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bindings < least {
		o.t.Errorf("only %d owners came that far, want %d", o.bindings, least)
	}
}
