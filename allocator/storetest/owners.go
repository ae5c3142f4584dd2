package storetest

import (
	"sync"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// Owners records the owner of each key, and fails its test when a key has two owners.
// Several goroutines may use it.
type Owners struct {
	t        testing.TB
	mu       sync.Mutex
	held     map[allocator.Key]allocator.Owner
	bindings int
}

// NewOwners makes a record without owners.
func NewOwners(t testing.TB) *Owners {
	return &Owners{t: t, held: map[allocator.Key]allocator.Owner{}}
}

// Bound records the owners of claims. None of their keys may have an owner.
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

// Released records that claims were released.
func (o *Owners) Released(claims []allocator.Claim) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range claims {
		delete(o.held, c.Key)
	}
}

// Held returns the owners by key. It must not be called beside Bound or Released.
func (o *Owners) Held() map[allocator.Key]allocator.Owner { return o.held }

// WantBindings fails the test if there were fewer calls of Bound: it would prove nothing.
func (o *Owners) WantBindings(least int) {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bindings < least {
		o.t.Errorf("got %d calls of Bound, want at least %d", o.bindings, least)
	}
}
