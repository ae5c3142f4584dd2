package allocatorcli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/rangemap"
	"github.com/vipkit/vipkit/allocator/repair"
)

// imported owns what an allocation map says to be taken: the map does not say who
// has it.
const imported = allocator.Owner("imported")

// importTries is how often an import begins again while others change the store.
const importTries = 8

// importer is a store that has a map for each of its ranges, and can make one as it was
// elsewhere. Where there is a map already, or no such range, the error is
// [allocator.ErrConflict] or [allocator.ErrInvalid].
type importer interface {
	Import(ctx context.Context, m rangemap.Map) error
}

// importMap takes the keys of a RangeAllocation, all in one step: a store with a part
// of them would hand out the others a second time. Those that have an owner already
// keep it.
func (a *app) importMap(ctx context.Context, args []string) error {
	object, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	m, err := rangemap.Unmarshal(object)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	keys, err := m.Keys()
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if err := a.checkRanges(keys); err != nil {
		return fmt.Errorf("nothing is imported: %w", err)
	}
	taken, err := a.adopt(ctx, m, keys)
	if err != nil {
		return fmt.Errorf("importing %d keys in one step, which can be repeated: %w", len(keys), err)
	}
	return a.printf("%d keys of %s: %d imported, %d were there\n", len(keys), m.Range, taken, len(keys)-taken)
}

// adopt makes a map of the store, or takes what the one that there is lacks.
func (a *app) adopt(ctx context.Context, m rangemap.Map, keys []allocator.Key) (int, error) {
	i, canImport := a.store.(importer)
	if !canImport {
		return a.take(ctx, keys)
	}
	err := i.Import(ctx, m)
	if errors.Is(err, allocator.ErrConflict) || errors.Is(err, allocator.ErrInvalid) {
		return a.take(ctx, keys)
	}
	return len(keys), err
}

// checkRanges wants each key to be in a range of the program.
func (a *app) checkRanges(keys []allocator.Key) error {
	var ranges []*allocator.Range
	for _, c := range a.ranges {
		r, err := allocator.NewRange(c)
		if err != nil {
			return err
		}
		ranges = append(ranges, r)
	}
	for _, k := range keys {
		isInAny := false
		for _, r := range ranges {
			_, isIn := r.Offset(k)
			isInAny = isInAny || isIn
		}
		if !isInAny {
			return fmt.Errorf("%v is in none of the ranges, %s", k, names(a.ranges))
		}
	}
	return nil
}

// take makes the store hold all keys, and says how many it lacked. A store without a
// map gets one that has them from the beginning. Whatever a write says, it is over
// when the store has everything.
func (a *app) take(ctx context.Context, keys []allocator.Key) (int, error) {
	claims := make([]allocator.Claim, len(keys))
	for i, k := range keys {
		claims[i] = allocator.Claim{Key: k, Owner: imported, Token: max(1, rand.Uint64()), Since: time.Now().Round(0).UTC()}
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
			return 0, cmp.Or[error](last, allocator.ErrConflict) // What was written may be gone again.
		case isNew:
			last = creator.Create(ctx, claims...)
		default:
			_, last = a.store.Commit(ctx, ops)
		}
	}
}

// lacking gives the writes for those claims whose keys are free, and how many keys
// are held by the very claims.
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
