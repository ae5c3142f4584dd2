package allocator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// MaxKeys is how many keys one call can ask a [Pool] for, in all its requests
// together. It is more than there are ports.
const MaxKeys = 1 << 16

// checkEvery is after how many keys it is asked whether anybody still wants them.
const checkEvery = 1024

// Request asks for keys: one particular one, or any of a kind.
type Request struct {
	// Key is the one that is wanted; the zero Key if any will do.
	Key Key
	// Kind is what is wanted if any will do.
	Kind Kind
	// Count is how many are wanted if any will do; 0 means 1. See [MaxKeys].
	Count int
}

// count is how many keys are asked for.
func (q Request) count() int { return max(1, q.Count) }

// kind is what sort of key is asked for.
func (q Request) kind() Kind {
	if k := q.Key.Kind(); k != 0 {
		return k
	}
	return q.Kind
}

func (q Request) check() error {
	switch {
	case q.Key.Kind() != 0 && (q.Kind != 0 && q.Kind != q.Key.Kind() || q.Count > 1):
		return fmt.Errorf("%w request: for %v, and for others at the same time", ErrInvalid, q.Key)
	case q.Key.Kind() == 0 && (q.Kind < IPv4 || q.Kind > Port), q.Count < 0:
		return fmt.Errorf("%w request: for %d keys of kind %v", ErrInvalid, q.Count, q.Kind)
	}
	return nil
}

func checkRequests(owner Owner, requests []Request) error {
	errs := []error{checkOwner(owner)}
	total := 0
	for _, q := range requests {
		errs = append(errs, q.check())
		total += min(q.count(), MaxKeys+1) // The sum of what is absurd may not fit.
		if total > MaxKeys {
			errs = append(errs, fmt.Errorf("%w request: for more than %d keys at once", ErrInvalid, MaxKeys))
			break
		}
	}
	return errors.Join(errs...)
}

// plan chooses keys for all requests and holds them as pending; or none. The particular
// ones come first, so that none of them is given to a request that any will do for.
func (x *index) plan(ctx context.Context, owner Owner, requests []Request, now time.Time) ([]Op, error) {
	statics, err := x.planStatics(owner, requests, now)
	if err != nil || len(statics) == len(requests) {
		return statics, err
	}
	var ops []Op
	rest := statics
	for _, q := range requests {
		if q.Key.Kind() != 0 {
			ops, rest = append(ops, rest[0]), rest[1:]
			continue
		}
		if ops, err = x.planNext(ctx, owner, q, ops); err != nil {
			x.unplan(statics)
			x.unplan(ops)
			return nil, err
		}
	}
	return ops, nil
}

func (x *index) planStatics(owner Owner, requests []Request, now time.Time) (ops []Op, err error) {
	for _, q := range requests {
		if q.Key.Kind() == 0 {
			continue
		}
		if ops, err = x.planStatic(owner, q.Key, now, ops); err != nil {
			x.unplan(ops)
			return nil, err
		}
	}
	return ops, nil
}

// held gives, of the particular keys that are asked for, those that the index knows to be
// taken, and the first one in any case: each of them may be free by now.
func (x *index) held(first Key, requests []Request) []Key {
	keys := []Key{first}
	for _, q := range requests {
		if _, isClaimed := x.claims[q.Key]; isClaimed && q.Key != first {
			keys = append(keys, q.Key)
		}
	}
	return keys
}

func (x *index) unplan(ops []Op) {
	for _, op := range ops {
		x.drop(op.Claim.Key, x.pending)
	}
}

func (x *index) planStatic(owner Owner, k Key, now time.Time, ops []Op) ([]Op, error) {
	if !x.isOpen(k) {
		return ops, &RangeError{Reason: ErrNotInRange, Key: k, Range: x.names(k.Kind())}
	}
	for _, set := range []map[Key]Owner{x.pending, x.unsure} {
		if holder, held := set[k]; held {
			return ops, &HeldError{Reason: ErrAllocated, Key: k, Owner: holder}
		}
	}
	claim := x.claims[k]
	if claim.Version != 0 && !x.isOver(claim, now) {
		return ops, &HeldError{Reason: ErrAllocated, Key: k, Owner: claim.Owner}
	}
	x.hold(k, owner, x.pending)
	return append(ops, Op{Claim: Claim{Key: k, Version: claim.Version}}), nil
}

func (x *index) planNext(ctx context.Context, owner Owner, q Request, ops []Op) ([]Op, error) {
	if uint64(q.count()) > x.free(q.Kind) {
		return ops, x.full(q)
	}
	for n := range q.count() {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return ops, context.Cause(ctx)
		}
		r := x.choose(q.Kind)
		if r == nil {
			return ops, x.full(q)
		}
		i, _ := r.pick()
		k := r.key(i)
		x.hold(k, owner, x.pending)
		ops = append(ops, Op{Claim: Claim{Key: k}})
	}
	return ops, nil
}

func (x *index) full(q Request) error {
	return &RangeError{Reason: ErrFull, Kind: q.Kind, Count: q.count(), Range: x.names(q.Kind)}
}

// free is how many keys of a kind there are at most: one that several ranges have
// counts in each.
func (x *index) free(kind Kind) (n uint64) {
	for _, r := range x.parts {
		if r.shape.kind == kind && !r.config.Draining {
			n += min(r.size-r.used, math.MaxUint64-n)
		}
	}
	return n
}

// choose gives one of the ranges of a kind that have a free key, at random by
// how many: of the upper bands as long as one of these has any. It gives nil if
// none has.
func (x *index) choose(kind Kind) *core {
	upper := func(r *core) uint64 { return r.size - r.bandSize - (r.used - r.bandUsed) }
	lower := func(r *core) uint64 { return r.bandSize - r.bandUsed }
	for _, free := range []func(*core) uint64{upper, lower} {
		var chosen *core
		total := 0.0
		for _, r := range x.parts {
			if r.shape.kind != kind || r.config.Draining || free(r) == 0 {
				continue
			}
			weight := float64(free(r))
			total += weight
			if chosen == nil || rand.Float64()*total < weight {
				chosen = r
			}
		}
		if chosen != nil {
			return chosen
		}
	}
	return nil
}

// names lists the ranges of a kind that can serve.
func (x *index) names(kind Kind) string {
	var names []string
	for _, r := range x.parts {
		if r.shape.kind == kind && !r.config.Draining {
			names = append(names, r.config.String())
		}
	}
	return strings.Join(names, ", ")
}
