package allocator

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// MaxKeys is how many keys one call of a [Pool] can request, in all its requests
// together: more than there are ports.
const MaxKeys = 1 << 16

// Request asks for keys: one particular one, or any of a kind.
type Request struct {
	// Key is a particular key; the zero Key requests any of Kind.
	Key Key
	// Kind is the kind of the keys if Key is zero.
	Kind Kind
	// Count is how many keys of Kind; 0 means 1. See [MaxKeys].
	Count int
}

// count is how many keys are requested.
func (q Request) count() int { return max(1, q.Count) }

// kind is the kind of the requested keys.
func (q Request) kind() Kind {
	if k := q.Key.Kind(); k != 0 {
		return k
	}
	return q.Kind
}

func (q Request) check() error {
	switch {
	case q.Key.Kind() != 0 && (q.Kind != 0 && q.Kind != q.Key.Kind() || q.Count > 1):
		return fmt.Errorf("%w request: it names key %v, but also a kind or a count", ErrInvalid, q.Key)
	case q.Key.Kind() == 0 && (q.Kind < IPv4 || q.Kind > Port), q.Count < 0:
		return fmt.Errorf("%w request: for %d keys of kind %v", ErrInvalid, q.Count, q.Kind)
	}
	return nil
}

func checkRequests(owner Owner, requests []Request) error {
	var errs []error
	if owner == "" {
		errs = append(errs, fmt.Errorf("%w owner: it has no name", ErrInvalid))
	}
	total := 0
	for _, q := range requests {
		errs = append(errs, q.check())
		total += min(q.count(), MaxKeys+1) // the sum of very large counts overflows
		if total > MaxKeys {
			errs = append(errs, fmt.Errorf("%w request: for more than %d keys at once", ErrInvalid, MaxKeys))
			break
		}
	}
	return errors.Join(errs...)
}

// plan chooses keys for all requests and holds them as pending; or none. It begins with
// the requests that name a key, so that no other request gets that key.
func (x *index) plan(owner Owner, requests []Request, now time.Time) ([]Op, error) {
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
		if ops, err = x.planNext(owner, q, ops); err != nil {
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

// held returns first and all other requested keys that are taken in the index: each of them
// may be free in the store.
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

func (x *index) planNext(owner Owner, q Request, ops []Op) ([]Op, error) {
	if uint64(q.count()) > x.free(q.Kind) {
		return ops, x.full(q)
	}
	for range q.count() {
		r := x.choose(q.Kind)
		if r == nil {
			return ops, x.full(q)
		}
		i := r.pick()
		k := r.key(i)
		x.hold(k, owner, x.pending)
		ops = append(ops, Op{Claim: Claim{Key: k}})
	}
	return ops, nil
}

func (x *index) full(q Request) error {
	return &RangeError{Reason: ErrFull, Kind: q.Kind, Count: q.count(), Range: x.names(q.Kind)}
}

// free is an upper bound of the free keys of a kind: a key that several ranges have
// counts in each.
func (x *index) free(kind Kind) (n uint64) {
	for _, r := range x.parts {
		if r.kind == kind && !r.config.Draining {
			n += min(r.n-r.used, math.MaxUint64-n)
		}
	}
	return n
}

// choose returns a random range of a kind that has a free key, weighted by the number of
// its free keys: of the upper bands, and when these are full, of the lower ones. It gives
// nil if no range has a free key.
func (x *index) choose(kind Kind) *core {
	upper := func(r *core) uint64 { return r.n - r.band - (r.used - r.bandUsed) }
	lower := func(r *core) uint64 { return r.band - r.bandUsed }
	for _, free := range []func(*core) uint64{upper, lower} {
		var chosen *core
		total := 0.0
		for _, r := range x.parts {
			if r.kind != kind || r.config.Draining || free(r) == 0 {
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
		if r.kind == kind && !r.config.Draining {
			names = append(names, r.config.String())
		}
	}
	return strings.Join(names, ", ")
}
