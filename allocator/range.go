package allocator

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
)

// Range allocates the keys of one range, in the memory of one process. [Pool] does the
// same for several ranges and processes, with a store.
//
// Any number of goroutines may use a Range.
type Range struct {
	mu     sync.Mutex
	core   *core
	owners map[uint64]Owner // by offset
}

// Stats is the size and use of a range.
type Stats struct {
	// Size is how many keys can be allocated, Used how many are.
	Size, Used uint64
	// BandSize and BandUsed are the part of these in the lower band.
	BandSize, BandUsed uint64
}

// Free is how many keys are left.
func (s Stats) Free() uint64 { return s.Size - s.Used }

// NewRange makes an empty range. The error is [ErrTooLarge] or [ErrInvalid].
func NewRange(c Config) (*Range, error) {
	r, err := newCore(c)
	if err != nil {
		return nil, err
	}
	return &Range{core: r, owners: map[uint64]Owner{}}, nil
}

// String is the range in canonical form.
func (r *Range) String() string { return r.core.config.String() }

// Allocate allocates one particular key of either band to owner. The error is
// [ErrNotInRange], or [ErrAllocated], even if owner itself has the key.
func (r *Range) Allocate(owner Owner, key Key) error {
	if err := checkOwner(owner); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.core.offset(key)
	if !ok || r.core.config.Draining {
		return &RangeError{Reason: ErrNotInRange, Key: key, Range: r.String()}
	}
	if holder, held := r.owners[i]; held {
		return &HeldError{Reason: ErrAllocated, Key: key, Owner: holder}
	}
	r.take(i, owner)
	return nil
}

// AllocateNext gives a random free key to owner: one of the upper band as long
// as there is one, then one of the lower. The error is [ErrFull].
func (r *Range) AllocateNext(owner Owner) (Key, error) {
	keys, err := r.AllocateN(owner, 1)
	if err != nil {
		return Key{}, err
	}
	return keys[0], nil
}

// AllocateN gives count random free keys to owner as [Range.AllocateNext] does,
// or none of them if there are not as many. More than 16,777,216 at once are
// [ErrInvalid].
func (r *Range) AllocateN(owner Owner, count int) ([]Key, error) {
	if err := checkOwner(owner); err != nil {
		return nil, err
	}
	if count < 0 || count > maxAtOnce {
		return nil, fmt.Errorf("%w count: %d is not within 0 and %d", ErrInvalid, count, maxAtOnce)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.core; c.config.Draining || uint64(count) > c.size-c.used {
		return nil, &RangeError{Reason: ErrFull, Kind: c.shape.kind, Count: count, Range: r.String()}
	}
	keys := make([]Key, count)
	for n := range keys {
		i := r.core.pick()
		r.take(i, owner)
		keys[n] = r.core.key(i)
	}
	return keys, nil
}

// Release frees a key if owner has it. Releasing a free key, or one that is not in the
// range, is no error. If another owner has the key, it stays allocated, and the error is
// [ErrNotOwner].
func (r *Range) Release(owner Owner, key Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.core.offset(key)
	holder, held := r.owners[i]
	switch {
	case !ok || !held:
		return nil
	case holder != owner:
		return &HeldError{Reason: ErrNotOwner, Key: key, Owner: holder}
	}
	r.core.put(i)
	delete(r.owners, i)
	return nil
}

// take marks a free offset.
func (r *Range) take(i uint64, owner Owner) {
	r.core.take(i)
	r.owners[i] = owner
}

// Lookup returns the owner of a key.
func (r *Range) Lookup(key Key) (Owner, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.core.offset(key)
	if !ok {
		return "", false
	}
	owner, held := r.owners[i]
	return owner, held
}

// Stats returns the size and use of the range, in constant time.
func (r *Range) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.stats()
}

// All yields the keys that are allocated when the loop begins, in order. It holds no lock
// meanwhile, so the range may change.
func (r *Range) All() iter.Seq2[Key, Owner] {
	return func(yield func(Key, Owner) bool) {
		r.mu.Lock()
		owners := maps.Clone(r.owners)
		r.mu.Unlock()
		for _, i := range slices.Sorted(maps.Keys(owners)) {
			if !yield(r.core.key(i), owners[i]) {
				return
			}
		}
	}
}

// Offset is the position of a key within the range, from 0: its bit in an
// allocation map. It is false for keys that cannot be allocated.
func (r *Range) Offset(key Key) (uint64, bool) { return r.core.offset(key) }

// Key is the key at a position within the range. It is the zero Key if there is
// none, or it is excluded.
func (r *Range) Key(offset uint64) Key {
	if offset >= r.core.shape.n {
		return Key{}
	}
	key := r.core.key(offset)
	if _, ok := r.core.offset(key); !ok {
		return Key{}
	}
	return key
}

// maxAtOnce is how many keys [Range.AllocateN] gives at most: a /8.
const maxAtOnce = 1 << 24

func checkOwner(owner Owner) error {
	if owner == "" {
		return fmt.Errorf("%w owner: it has no name", ErrInvalid)
	}
	return nil
}
