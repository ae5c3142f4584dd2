package allocatorcli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/rangemap"
	"github.com/vipkit/vipkit/allocator/repair"
)

// imported owns the taken keys of an allocation map, which has no owners.
const imported = allocator.Owner("imported")

// importTries is how often an import is tried while other programs change the store.
const importTries = 8

// importer is a store that has a map for each of its ranges, and can import one. The error
// is [allocator.ErrConflict] if the range has a map already, and [allocator.ErrInvalid] if the
// store does not have the range.
type importer interface {
	Import(ctx context.Context, m rangemap.Map) error
}

// importMap imports the keys of a RangeAllocation, all in one step: a store with a part
// of them would allocate the others again. Keys that have an owner keep it.
func (a *app) importMap(ctx context.Context, args []string) error {
	object, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var keys []allocator.Key
	m, err := rangemap.Unmarshal(object)
	if err == nil {
		keys, err = m.Keys()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if err := a.checkRanges(keys); err != nil {
		return fmt.Errorf("nothing imported: %w", err)
	}
	taken, err := a.adopt(ctx, m, keys)
	if err != nil {
		return fmt.Errorf("importing %d keys failed; import again: %w", len(keys), err)
	}
	return a.printf("%d keys of %s: %d imported, %d already taken\n", len(keys), m.Range, taken, len(keys)-taken)
}

// checkRanges checks that each key is in a range of the program.
func (a *app) checkRanges(keys []allocator.Key) error {
	isInAny := make([]bool, len(keys))
	for _, c := range a.ranges {
		r, err := allocator.NewRange(c)
		if err != nil {
			return err
		}
		for i, k := range keys {
			_, isIn := r.Offset(k)
			isInAny[i] = isInAny[i] || isIn
		}
	}
	if i := slices.Index(isInAny, false); i >= 0 {
		return fmt.Errorf("%v is not in any of the ranges %s", keys[i], names(a.ranges))
	}
	return nil
}

// adopt imports the map, or takes its free keys if the store has a map already.
func (a *app) adopt(ctx context.Context, m rangemap.Map, keys []allocator.Key) (int, error) {
	if i, canImport := a.store.(importer); canImport {
		err := i.Import(ctx, m)
		if !errors.Is(err, allocator.ErrConflict) && !errors.Is(err, allocator.ErrInvalid) {
			return len(keys), err
		}
	}
	return a.take(ctx, keys)
}

// take claims the keys that the store lacks, and gives their number. A store without a map
// gets one with all keys. The claims have no date: a repair gives the keys to their owners at
// once, however many there are. After each write, also one that failed, take reads the store; it
// ends when the store has all keys.
func (a *app) take(ctx context.Context, keys []allocator.Key) (int, error) {
	claims := make([]allocator.Claim, len(keys))
	for i, k := range keys {
		claims[i] = allocator.Claim{Key: k, Owner: imported, Token: max(1, rand.Uint64())}
	}
	creator, canCreate := a.store.(repair.Creator)
	if _, canImport := a.store.(importer); canImport {
		canCreate = false // The maps of other ranges would be empty.
	}
	var last error
	for try := 0; ; try++ {
		state, err := a.store.Load(ctx)
		isNew := canCreate && errors.Is(err, allocator.ErrNoMap)
		if err != nil && !isNew {
			return 0, errors.Join(last, err)
		}
		ops, taken := lacking(claims, state)
		switch {
		case !isNew && len(ops) == 0:
			return taken, nil
		case try == importTries:
			return 0, cmp.Or[error](last, allocator.ErrConflict) // other programs may have deleted the claims
		case isNew:
			last = creator.Create(ctx, claims...)
		default:
			_, last = a.store.Commit(ctx, ops)
		}
	}
}

// lacking returns the operations for the claims whose keys are free, and the number of claims
// that the store has.
func lacking(claims []allocator.Claim, state allocator.State) (ops []allocator.Op, taken int) {
	tokens := make(map[allocator.Key]uint64, len(state.Claims))
	for _, c := range state.Claims {
		tokens[c.Key] = c.Token
	}
	for _, c := range claims {
		token, isHeld := tokens[c.Key]
		switch {
		case !isHeld:
			ops = append(ops, allocator.Op{Claim: c})
		case token == c.Token:
			taken++
		}
	}
	return ops, taken
}
