package allocator

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sync"
)

// Range allocates the keys of one range, in the memory of one process. [Pool] does the
// same for several ranges and processes, with a store.
//
// Any number of goroutines may use a Range.
type Range struct {
	mu   sync.Mutex
	core *core
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
	r, err := newCore(c, true)
	if err != nil {
		return nil, err
	}
	return &Range{core: r}, nil
}

// String is the range in canonical form.
func (r *Range) String() string { return r.core.config.String() }

// Allocate allocates one particular key of either band to owner. The error is
// [ErrNotInRange], or [ErrAllocated], even if owner itself has the key.
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
	keys := make([]Key, 0, min(count, chunkSize)) // the caller may request very many
	for range count {
		i, _ := r.core.pick()
		r.core.take(i, owner)
		keys = append(keys, r.core.key(i))
	}
	return keys, nil
}

// Release frees a key if owner has it. Releasing a free key, or one that is not in the
// range, is no error. If another owner has the key, it stays allocated, and the error is
// [ErrNotOwner].
func (r *Range) Release(owner Owner, key Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, err := r.core.canPut(owner, key)
	if err != nil || i == noOffset {
		return err
	}
	r.core.put(i)
	return nil
}

// Lookup returns the owner of a key.
func (r *Range) Lookup(key Key) (Owner, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.core.offset(key)
	if !ok {
		return "", false
	}
	return r.core.table.owner(i)
}

// Stats returns the size and use of the range, in constant time.
func (r *Range) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.stats()
}

// All yields the allocated keys in order. It holds no lock meanwhile, so the range may
// change: it yields each key that is allocated throughout exactly once, and may or may
// not yield the others.
func (r *Range) All() iter.Seq2[Key, Owner] {
	return func(yield func(Key, Owner) bool) {
		batch := make([]entry, 0, chunkSize)
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

// noOffset is an offset that no key has.
const noOffset = ^uint64(0)

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
		return fmt.Errorf("%w count: %d is not within 0 and %d", ErrInvalid, count, maxAtOnce)
	}
	if r.config.Draining || uint64(count) > r.size-r.used {
		return &RangeError{Reason: ErrFull, Kind: r.shape.kind, Count: count, Range: r.config.String()}
	}
	return checkOwner(owner)
}

// canPut returns noOffset if the key is free or not in the range.
func (r *core) canPut(owner Owner, key Key) (uint64, error) {
	i, ok := r.offset(key)
	if !ok {
		return noOffset, nil
	}
	switch holder, held := r.table.owner(i); {
	case !held:
		return noOffset, nil
	case holder != owner:
		return noOffset, &HeldError{Reason: ErrNotOwner, Key: key, Owner: holder}
	}
	return i, nil
}
