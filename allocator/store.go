package allocator

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// Version numbers the states of a store. A store gives every change a higher
// one than all before. 0 is never given: as the version of a claim it means that
// there is none.
type Version uint64

// Claim is what a store knows about a key that is taken. It is a comparable
// value, its times in UTC and without monotonic clock.
type Claim struct {
	Key   Key
	Owner Owner
	// Token tells this allocation from all others, those of the same key by the
	// same owner too. It stays the same from the reservation to the release.
	Token uint64
	// Version is that of the last change of this claim. The store sets it.
	Version Version
	// Since is when the claim was last written, by the clock of who wrote it.
	Since time.Time
	// Expires is when a reservation ends that is not bound, by the clock of who
	// made it. The zero time says that the claim is bound: it does not end by itself.
	Expires time.Time
}

// IsBound reports whether the claim lasts until it is released.
func (c Claim) IsBound() bool { return c.Expires.IsZero() }

// IsExpired reports whether the claim is a reservation that has ended.
func (c Claim) IsExpired(now time.Time) bool { return !c.IsBound() && !now.Before(c.Expires) }

// Op writes one claim, or deletes it. The version of the claim is the
// precondition: 0 wants that the key is free, any other one that the store holds
// a claim of this version.
type Op struct {
	Claim  Claim
	Delete bool
}

// Check says whether the operation makes sense, whatever a store holds: it has a key;
// what is written has an owner, and what is deleted a version. Otherwise the error is
// [ErrInvalid]. It is for those who write a [Store].
func (o Op) Check() error {
	if o.Claim.Key.Kind() == 0 || !o.Delete && o.Claim.Owner == "" || o.Delete && o.Claim.Version == 0 {
		return fmt.Errorf("%w change of key %v: it lacks a key, an owner or a version", ErrInvalid, o.Claim.Key)
	}
	return nil
}

// Event is a change that was made to a store. The version of its claim is that
// of the change. Of a deleted claim only key and version count.
type Event struct {
	Claim   Claim
	Deleted bool
}

// State is what a store holds at one time, in no particular order.
type State struct {
	Claims []Claim
	// Version is that of the last change of the whole store that the state knows
	// of. 0 says that the store has none, or cannot tell but never answers from the
	// past.
	Version Version
}

// Store keeps claims for any number of allocators. Its reads should be
// linearizable: see every change that was acknowledged before they began. If one is
// not, its version gives that away, and a pool asks again. Any number of goroutines
// may use a store.
//
// Where a version comes from is the store's matter: it may be a revision of the
// whole, as etcd has it, or the resource version of an object.
type Store interface {
	// Load gives everything. It fails with [ErrNoMap] if the store was never
	// set up.
	Load(ctx context.Context) (State, error)
	// Get gives the claims of some keys. Those that are free are left out.
	Get(ctx context.Context, keys ...Key) (State, error)
	// Commit makes all changes or none and gives the version of each. No key
	// comes twice; that, and an [Op] that makes no sense, is [ErrInvalid]. With it, and
	// with a [*ConflictError], nothing was changed. After any other
	// error nobody knows, and Get must tell. A change may become effective even
	// after its Commit has failed, if it was still under way.
	//
	// A store that cannot write several keys at once writes one after the other
	// and undoes what it has written when one fails; others may see that. If it is
	// interrupted, what is left are reservations, which expire.
	Commit(ctx context.Context, ops []Op) ([]Version, error)
	// Watch gives the changes after a version, each key's in their order, and
	// goes on until ctx ends or the loop does. An error is the last thing it gives:
	// ErrCompacted means that only Load helps. A store may leave out changes of a
	// claim that were followed by others.
	Watch(ctx context.Context, after Version) iter.Seq2[Event, error]
}
