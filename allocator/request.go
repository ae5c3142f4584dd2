package allocator

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Request asks for keys: one particular one, or any of a kind.
type Request struct {
	// Key is the one that is wanted; the zero Key if any will do.
	Key Key
	// Kind is what is wanted if any will do.
	Kind Kind
	// Count is how many are wanted if any will do; 0 means 1.
	Count int
}

func (q Request) check() error {
	switch {
	case q.Key.Kind() != 0 && (q.Kind != 0 && q.Kind != q.Key.Kind() || q.Count > 1):
		return fmt.Errorf("request for %v and also others: %w", q.Key, ErrInvalid)
	case q.Key.Kind() == 0 && (q.Kind < IPv4 || q.Kind > Port), q.Count < 0:
		return fmt.Errorf("request for %d keys of kind %v: %w", q.Count, q.Kind, ErrInvalid)
	}
	return nil
}

func checkRequests(owner Owner, requests []Request) error {
	errs := []error{checkOwner(owner)}
	for _, q := range requests {
		errs = append(errs, q.check())
	}
	return errors.Join(errs...)
}

// plan chooses keys for all requests and holds them as pending; or none.
func (x *index) plan(owner Owner, requests []Request, now time.Time) ([]Op, error) {
	var ops []Op
	for _, q := range requests {
		var err error
		if q.Key.Kind() != 0 {
			ops, err = x.planStatic(owner, q.Key, now, ops)
		} else {
			ops, err = x.planNext(owner, q.Kind, max(1, q.Count), ops)
		}
		if err != nil {
			x.unplan(ops)
			return nil, err
		}
	}
	return ops, nil
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
	if claim.Version != 0 && !claim.IsExpired(now) {
		return ops, &HeldError{Reason: ErrAllocated, Key: k, Owner: claim.Owner}
	}
	x.hold(k, owner, x.pending)
	return append(ops, Op{Claim: Claim{Key: k, Version: claim.Version}}), nil
}

func (x *index) planNext(owner Owner, kind Kind, count int, ops []Op) ([]Op, error) {
	for range count {
		r := x.choose(kind)
		if r == nil {
			return ops, &RangeError{Reason: ErrFull, Range: x.names(kind)}
		}
		i, _ := r.pick()
		k := r.key(i)
		x.hold(k, owner, x.pending)
		ops = append(ops, Op{Claim: Claim{Key: k}})
	}
	return ops, nil
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
