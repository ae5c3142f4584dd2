package allocator

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Reserve reserves keys for owner for as long as the TTL of the pool: all requested
// keys in one change, or none; at most [MaxKeys]. [Pool.Bind] makes them last. Between
// both the caller stores the object that owns them; if it crashes, the reservations
// expire.
//
// A key that one request names is not given to the others of the call. The claims come
// in the order of the requests. Errors are [ErrAllocated], [ErrNotInRange], [ErrFull],
// [ErrInvalid], [ErrNoMap] if the store has no allocation map yet, [ErrConflict] if
// other pools were faster at every attempt, [ErrUnknown] if the store did not answer,
// so that the keys may be reserved until the TTL ends, and the errors of the store and
// of the context.
func (p *Pool) Reserve(ctx context.Context, owner Owner, requests ...Request) ([]Claim, error) {
	now := p.now()
	return p.allocate(ctx, Claim{Owner: owner, Since: instant(now), Expires: instant(now.Add(p.ttl))}, requests)
}

// Allocate does the same as Reserve and Bind in one change. It is for owners that
// exist already: if the caller crashes before it has recorded its keys, or the
// outcome is unknown, only a repair finds that they are unused. It returns the errors of
// Reserve.
func (p *Pool) Allocate(ctx context.Context, owner Owner, requests ...Request) ([]Claim, error) {
	return p.allocate(ctx, Claim{Owner: owner, Since: instant(p.now())}, requests)
}

// allocate creates the requested claims, with the owner and the times of model.
func (p *Pool) allocate(ctx context.Context, model Claim, requests []Request) (claims []Claim, err error) {
	if p.observer != nil {
		start := p.now()
		defer func() { p.observe(requests, claims, p.now().Sub(start), err) }()
	}
	for attempt := range attempts {
		if attempt%rereadAfter == rereadAfter-1 {
			// A conflict names only one key. A request for many keys would not
			// succeed if the pool's view lacks many claims of other pools.
			if readErr := p.syncShared(ctx); readErr != nil {
				return nil, errors.Join(err, readErr)
			}
		}
		var ops []Op
		ops, err = p.plan(ctx, model.Owner, requests)
		if err != nil || len(ops) == 0 {
			return nil, err
		}
		for i := range ops {
			c := &ops[i].Claim
			c.Owner, c.Token, c.Since, c.Expires = model.Owner, newToken(), model.Since, model.Expires
		}
		if claims, err = p.create(ctx, ops); !errors.Is(err, ErrConflict) {
			return claims, err
		}
	}
	return nil, fmt.Errorf("giving up after %d attempts, other pools were faster each time: %w", attempts, err)
}

// instant is a time in the form of claims.
func instant(t time.Time) time.Time { return t.Round(0).UTC() }

// plan chooses keys. The pool's index may be stale, so before plan reports that a
// key is taken, or none is left, it reads the store once.
func (p *Pool) plan(ctx context.Context, owner Owner, requests []Request) ([]Op, error) {
	if err := checkRequests(owner, requests); err != nil {
		return nil, err
	}
	if err := p.prepare(ctx); err != nil {
		return nil, fmt.Errorf("no address or port can be allocated: %w", err)
	}
	ops, held, err := p.planOnce(owner, requests)
	if len(held) > 0 {
		// The pool's view alone does not say that a key is taken.
		if _, err := p.read(ctx, held, 0); err != nil {
			return nil, fmt.Errorf("whether the keys are free is unknown: %w", err)
		}
		ops, _, err = p.planOnce(owner, requests)
	}
	if !errors.Is(err, ErrFull) {
		return ops, err
	}
	// Nor does it say that no key is free.
	err = errors.Join(p.syncShared(ctx), p.expire(ctx))
	if err != nil {
		return nil, fmt.Errorf("whether a key is free is unknown: %w", err)
	}
	ops, _, err = p.planOnce(owner, requests)
	return ops, err
}

// planOnce chooses keys by the pool's view. If a requested one is taken there, held has all that are.
func (p *Pool) planOnce(owner Owner, requests []Request) (ops []Op, held []Key, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ops, err = p.index.plan(owner, requests, p.now())
	if first, isHeld := errors.AsType[*HeldError](err); isHeld {
		held = p.index.held(first.Key, requests)
	}
	return ops, held, err
}

// create commits new claims.
func (p *Pool) create(ctx context.Context, ops []Op) ([]Claim, error) {
	defer p.endRequest(p.beginRequest())
	versions, err := p.store.Commit(ctx, ops)
	if err == nil {
		return p.created(ops, versions), nil
	}
	conflict, isConflict := errors.AsType[*ConflictError](err)
	if isConflict && !isOurs(ops, conflict.Current) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.index.unplan(ops)
		p.index.correct(conflict.Key, conflict.Current, presumed(ops, conflict.Key))
		return nil, err
	}
	return p.find(ctx, ops, err)
}

func (p *Pool) created(ops []Op, versions []Version) []Claim {
	claims := make([]Claim, len(ops))
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, op := range ops {
		claims[i] = op.Claim
		claims[i].Version = versions[i]
		p.index.learn(claims[i])
		p.index.drop(op.Claim.Key, p.index.pending)
	}
	return claims
}

// presumed is the version of a claim that operations have as their precondition.
func presumed(ops []Op, k Key) Version {
	for _, op := range ops {
		if op.Claim.Key == k {
			return op.Claim.Version
		}
	}
	return 0
}

// isOurs reports whether a claim was made by one of these operations. If it conflicts
// with them, the store has executed them twice.
func isOurs(ops []Op, c Claim) bool {
	for _, op := range ops {
		if c.Version != 0 && op.Claim.Key == c.Key && op.Claim.Token == c.Token {
			return true
		}
	}
	return false
}

// find reads the outcome of operations that returned an error.
func (p *Pool) find(ctx context.Context, ops []Op, cause error) ([]Claim, error) {
	keys := make([]Key, len(ops))
	p.mu.Lock()
	for i, op := range ops {
		keys[i] = op.Claim.Key
		p.index.hold(keys[i], op.Claim.Owner, p.index.unsure)
		p.index.drop(keys[i], p.index.pending)
	}
	p.mu.Unlock()
	claims, err := p.read(ctx, keys, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, errors.Join(cause, err))
	}
	for _, c := range claims {
		if !isOurs(ops, c) {
			return nil, cause
		}
	}
	if errors.Is(cause, ErrUnknown) {
		return p.keep(ctx, claims, cause)
	}
	return claims, nil
}

// keep writes claims again that the store may still undo: undoing has the version of the first
// write as its precondition.
func (p *Pool) keep(ctx context.Context, claims []Claim, cause error) ([]Claim, error) {
	err := p.change(ctx, claims, func(want, current Claim) (Op, bool, error) {
		if current.Version == 0 || current.Token != want.Token {
			return Op{}, false, cause
		}
		return Op{Claim: current}, true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return claims, nil
}
