package allocator

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sync"
)

// Range hands out the keys of one range and remembers who has them, in the
// memory of one process. [Pool] does the same for several ranges and processes,
// and remembers it in a store.
//
// Any number of goroutines may use a Range.
type Range struct {
	mu   sync.Mutex
	core *core
}

// Stats is how full a range is. All of it is counted, none of it computed, so
// asking costs nothing.
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
	r, err := newCore(c, true)
	if err != nil {
		return nil, err
	}
	return &Range{core: r}, nil
}

// String is the range in canonical form.
func (r *Range) String() string { return r.core.config.String() }

// Allocate gives one particular key to owner, from whichever band. The error is
// [ErrNotInRange], or [ErrAllocated] even if owner itself has the key: who asks
// twice should know.
func (r *Range) Allocate(owner Owner, key Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, err := r.core.canTake(owner, key)
	if err != nil {
		return err
	}
	r.core.take(i, owner)
	return nil
}

// AllocateNext gives a random free key to owner: one of the upper band as long
// as there is one, then one of the lower. The error is [ErrFull].
func (r *Range) AllocateNext(owner Owner) (Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, err := r.core.canPick(owner)
	if err != nil {
		return Key{}, err
	}
	r.core.take(i, owner)
	return r.core.key(i), nil
}

// AllocateN gives count random free keys to owner as [Range.AllocateNext] does,
// or none of them if there are not as many. More than 16,777,216 at once are
// [ErrInvalid].
func (r *Range) AllocateN(owner Owner, count int) ([]Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.core.hasRoom(owner, count); err != nil {
		return nil, err
	}
	keys := make([]Key, 0, min(count, pageSize)) // What is asked for may be absurd.
	for range count {
		i, _ := r.core.pick()
		r.core.take(i, owner)
		keys = append(keys, r.core.key(i))
	}
	return keys, nil
}

// Release frees a key if owner has it. To release a free key, or one that does
// not belong to the range, is no error. One that somebody else has stays
// theirs, and the error is [ErrNotOwner].
func (r *Range) Release(owner Owner, key Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, err := r.core.canPut(owner, key)
	if err != nil || i == nobody {
		return err
	}
	r.core.put(i)
	return nil
}

// Lookup tells who has a key.
func (r *Range) Lookup(key Key) (Owner, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.core.offset(key)
	if !ok {
		return "", false
	}
	return r.core.table.owner(i)
}

// Stats tells how full the range is, in constant time.
func (r *Range) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.stats()
}

// All goes through the allocated keys in order. It holds no lock while it does,
// so the range may be used and changed in between: keys that are allocated
// throughout come exactly once, others may or may not come.
func (r *Range) All() iter.Seq2[Key, Owner] {
	return func(yield func(Key, Owner) bool) {
		batch := make([]entry, 0, pageSize)
		for from, more := uint64(0), true; more; {
			r.mu.Lock()
			batch, more = r.core.table.after(from, batch[:0])
			r.mu.Unlock()
			slices.SortFunc(batch, func(a, b entry) int { return cmp.Compare(a.offset, b.offset) })
			for _, e := range batch {
				if !yield(r.core.key(e.offset), e.owner) {
					return
				}
				from = e.offset + 1
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

// maxAtOnce is how many keys [Range.AllocateN] gives at most: as many as fill any
// range that is not sparse.
const maxAtOnce = maxDense

// nobody is an offset that no key has.
const nobody = ^uint64(0)

func checkOwner(owner Owner) error {
	if owner == "" {
		return fmt.Errorf("%w owner: it has no name", ErrInvalid)
	}
	return nil
}

func (r *core) canTake(owner Owner, key Key) (uint64, error) {
	if err := checkOwner(owner); err != nil {
		return 0, err
	}
	i, ok := r.offset(key)
	if !ok || r.config.Draining {
		return 0, &RangeError{Reason: ErrNotInRange, Key: key, Range: r.config.String()}
	}
	if holder, held := r.table.owner(i); held {
		return 0, &HeldError{Reason: ErrAllocated, Key: key, Owner: holder}
	}
	return i, nil
}

func (r *core) canPick(owner Owner) (uint64, error) {
	if err := checkOwner(owner); err != nil {
		return 0, err
	}
	i, ok := r.pick()
	if !ok || r.config.Draining {
		return 0, &RangeError{Reason: ErrFull, Kind: r.shape.kind, Count: 1, Range: r.config.String()}
	}
	return i, nil
}

func (r *core) hasRoom(owner Owner, count int) error {
	if count < 0 || count > maxAtOnce {
		return fmt.Errorf("%w count: %d, where 0 to %d are possible", ErrInvalid, count, maxAtOnce)
	}
	if r.config.Draining || uint64(count) > r.size-r.used {
		return &RangeError{Reason: ErrFull, Kind: r.shape.kind, Count: count, Range: r.config.String()}
	}
	return checkOwner(owner)
}

// canPut gives nobody if there is nothing to free.
func (r *core) canPut(owner Owner, key Key) (uint64, error) {
	i, ok := r.offset(key)
	if !ok {
		return nobody, nil
	}
	switch holder, held := r.table.owner(i); {
	case !held:
		return nobody, nil
	case holder != owner:
		return nobody, &HeldError{Reason: ErrNotOwner, Key: key, Owner: holder}
	}
	return i, nil
}
