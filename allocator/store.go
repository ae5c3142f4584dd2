package allocator

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// Version numbers the states of a store. Every change has a higher one than all
// before. 0 is never used: as the version of a claim it means that the key is free.
type Version uint64

// Claim is a taken key with its owner, in a store. It is a comparable value, its times
// in UTC and without monotonic clock.
type Claim struct {
	// Key is what is taken.
	Key Key
	// Owner has it.
	Owner Owner
	// Token identifies this allocation, also among the allocations of the same key by the
	// same owner. It stays the same from the reservation to the release.
	Token uint64
	// Version is that of the last change of this claim. The store sets it.
	Version Version
	// Since is when the claim was last written, by the clock of the writer.
	Since time.Time
	// Expires is when the reservation ends, by the clock of its writer. The zero
	// time says that the claim is bound.
	Expires time.Time
}

// IsBound reports whether the claim lasts until it is released.
func (c Claim) IsBound() bool { return c.Expires.IsZero() }

// IsExpired reports whether the claim is a reservation that has ended.
func (c Claim) IsExpired(now time.Time) bool { return !c.IsBound() && !now.Before(c.Expires) }

// Op writes one claim, or deletes it. The version of the claim is the
// precondition: 0 requires that the key is free, any other one that the store has a
// claim of this version.
type Op struct {
	// Claim is written; for a deletion only its key and version count.
	Claim Claim
	// Delete says that the claim is deleted.
	Delete bool
}

// CheckOps validates the operations of one commit: each must have a key, a write must have an
// owner, a deletion a version, and no two have one key. Otherwise the error is [ErrInvalid].
// Implementations of [Store] call it.
func CheckOps(ops []Op) error {
	seen := make(map[Key]struct{}, len(ops))
	for _, op := range ops {
		k := op.Claim.Key
		if k.Kind() == 0 || !op.Delete && op.Claim.Owner == "" || op.Delete && op.Claim.Version == 0 {
			return fmt.Errorf("%w change of key %v: it lacks a key, an owner or a version", ErrInvalid, k)
		}
		if _, isAgain := seen[k]; isAgain {
			return fmt.Errorf("%w commit: key %v is given twice", ErrInvalid, k)
		}
		seen[k] = struct{}{}
	}
	return nil
}

// Event is a change of a store. The version of its claim is that of the change. Of a
// deleted claim only key and version are meaningful.
type Event struct {
	// Claim is the claim after the change.
	Claim Claim
	// Deleted says that the key is free now.
	Deleted bool
}

// State is what a store holds at one time, in no particular order.
type State struct {
	// Claims are all claims, in any order.
	Claims []Claim
	// Version is that of the last change that the state includes. 0 says that the
	// store is empty, or has no such version and never returns outdated data.
	Version Version
}

// Store keeps claims for any number of pools. Its reads should be linearizable: see
// every change that was acknowledged before they began. If a read is not, its version
// shows that, and a pool reads again. Any number of goroutines may use a store.
//
// A version may be a revision of the whole store, as in etcd, or the resource version
// of an object.
type Store interface {
	// Load returns everything. It fails with [ErrNoMap] if the store was never
	// set up.
	Load(ctx context.Context) (State, error)
	// Get returns the claims of some keys. Those that are free are left out.
	Get(ctx context.Context, keys ...Key) (State, error)
	// Commit makes all changes or none and gives the version of each. A key given
	// twice, and an invalid [Op], is [ErrInvalid]. With that, and with a
	// [*ConflictError], nothing was changed. After any other error the outcome is
	// unknown, and the caller reads it by Get. A change may become effective even
	// after its Commit has failed, if it was still in flight.
	//
	// A store that cannot write several keys at once writes one after the other
	// and undoes the writes when one fails; readers may see that. If it is
	// interrupted, it leaves reservations, which expire. If undoing fails, the error
	// is ErrUnknown: writes may be undone later, so the caller writes again what it
	// keeps. Undoing has the version of the write as its precondition.
	Commit(ctx context.Context, ops []Op) ([]Version, error)
	// Watch yields the changes after a version, the changes of each key in their order,
	// until ctx ends or the loop does. An error is the last item: after
	// ErrCompacted the caller must Load. A store may leave out changes of a claim
	// that were followed by others.
	Watch(ctx context.Context, after Version) iter.Seq2[Event, error]
}
