package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Bind makes reservations last until they are released: all of them, or none. To
// bind again what is bound is no error. If a reservation has ended and was taken
// away, or was released, the error is [ErrExpired], and the keys may have other
// owners. If the store does not answer after a change was tried, it is [ErrUnknown]: to
// bind again finds out.
//
// The store decides, also about a claim that looks bound: that it was once given
// does not mean that it still is.
func (p *Pool) Bind(ctx context.Context, claims ...Claim) ([]Claim, error) {
	now := instant(p.now())
	once, places := distinct(claims)
	err := p.change(ctx, once, func(want, current Claim) (Op, bool, error) {
		switch {
		case current.Version == 0:
			return Op{}, false, fmt.Errorf("binding %v: %w", want.Key, ErrExpired)
		case current.Token != want.Token:
			other := &HeldError{Reason: ErrNotOwner, Key: want.Key, Owner: current.Owner}
			return Op{}, false, fmt.Errorf("%w: %w", ErrExpired, other)
		case current.IsBound():
			return Op{}, false, nil
		}
		next := current
		next.Since, next.Expires = now, time.Time{}
		return Op{Claim: next}, true, nil
	})
	if err != nil {
		return nil, err
	}
	bound := make([]Claim, len(claims))
	for i, place := range places {
		bound[i] = once[place]
	}
	return bound, nil
}

// distinct gives every allocation once, and where in that list each claim has its
// own.
func distinct(claims []Claim) (once []Claim, places []int) {
	type allocation struct {
		key   Key
		token uint64
	}
	places = make([]int, len(claims))
	if len(claims) == 1 {
		return slices.Clone(claims), places
	}
	seen := make(map[allocation]int, len(claims))
	for i, c := range claims {
		place, known := seen[allocation{c.Key, c.Token}]
		if !known {
			place = len(once)
			seen[allocation{c.Key, c.Token}] = place
			once = append(once, c)
		}
		places[i] = place
	}
	return once, places
}

// Release frees what was reserved or bound. A claim with a token frees only the
// very allocation that it came from: to release it late or again does nothing, whoever
// has the key by then. With token 0 the claim needs no more than key and owner, and
// frees whatever allocation of that owner there is; if somebody else has the key, that
// stays, and the error is [ErrNotOwner]. Such an error does not keep the other claims
// from being released. After any other error some may be released: to release them again
// does no harm.
func (p *Pool) Release(ctx context.Context, claims ...Claim) error {
	named, foreign, err := p.nameAllocations(ctx, claims)
	if err != nil {
		return err
	}
	once, _ := distinct(named)
	err = p.change(ctx, once, func(want, current Claim) (Op, bool, error) {
		isIt := current.Version != 0 && current.Token == want.Token
		return Op{Claim: current, Delete: true}, isIt, nil
	})
	return errors.Join(foreign, err)
}

// nameAllocations gives the claims with the tokens that those lack, without those
// that are free or, which is an error for the caller, somebody else's.
func (p *Pool) nameAllocations(ctx context.Context, claims []Claim) (named []Claim, foreign, err error) {
	if !slices.ContainsFunc(claims, isNameless) {
		return claims, nil, nil
	}
	nameless := slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { return !isNameless(c) })
	named = slices.DeleteFunc(slices.Clone(claims), isNameless)
	current, err := p.read(ctx, keysOf(nameless), 0)
	if err != nil {
		return nil, nil, err
	}
	for i, c := range current {
		switch {
		case c.Version == 0:
		case c.Owner != nameless[i].Owner:
			foreign = errors.Join(foreign, &HeldError{Reason: ErrNotOwner, Key: c.Key, Owner: c.Owner})
		default:
			named = append(named, c)
		}
	}
	return named, foreign, nil
}

func isNameless(c Claim) bool { return c.Token == 0 }

// expire frees the reservations that have ended.
func (p *Pool) expire(ctx context.Context) error {
	now := p.now()
	var over []Claim
	p.mu.Lock()
	for k := range p.index.reserved {
		if c := p.index.claims[k]; p.index.isOver(c, now) {
			over = append(over, c)
		}
	}
	p.mu.Unlock()
	for batch := range slices.Chunk(over, 64) {
		err := p.change(ctx, batch, func(want, current Claim) (Op, bool, error) {
			isOver := current.Version == want.Version || current.IsExpired(now)
			return Op{Claim: current, Delete: true}, current.Version != 0 && isOver, nil
		})
		if err != nil {
			return fmt.Errorf("freeing reservations that have ended: %w", err)
		}
	}
	return nil
}

// decide says what to do about a claim that somebody wants changed, when the
// store holds the current one: an operation; nothing, because it is done; or give
// up.
type decide func(want, current Claim) (Op, bool, error)

// change brings all claims, none of which comes twice, into the state that decide
// wants, and writes it into them. Whatever goes wrong, it looks again what the store
// holds, and decides anew. So it finds out what became of a write, and does not
// guess. Nor does it take the caller's word, or its own, for it that nothing has to
// be done.
func (p *Pool) change(ctx context.Context, claims []Claim, decide decide) error {
	if len(claims) == 0 {
		return nil
	}
	current, newest := p.expected(claims)
	isRead := false
	var last error
	for range attempts {
		ops, at, err := decideAll(claims, current, decide)
		if isSure := isRead || err == nil && len(ops) == len(claims); isSure {
			if err == nil {
				err = p.commit(ctx, claims, current, ops, at)
			}
			if err == nil || len(ops) == 0 || errors.Is(err, ErrInvalid) {
				return err
			}
			last = err
		}
		if current, err = p.read(ctx, keysOf(claims), newest); err != nil {
			return outcome(last, err)
		}
		isRead = true
	}
	return fmt.Errorf("tried %d times: %w", attempts, last)
}

// outcome is the error where the store could not be asked, and what was last
// written has failed, or nothing was written yet.
func outcome(written, asked error) error {
	if written == nil {
		return asked
	}
	return fmt.Errorf("%w: %w", ErrUnknown, errors.Join(written, asked))
}

// commit makes the operations for some of the claims, at their places, and writes what
// has become of all of them into claims.
func (p *Pool) commit(ctx context.Context, claims, current []Claim, ops []Op, at []int) error {
	var versions []Version
	if len(ops) > 0 {
		defer p.answered(p.ask())
		var err error
		if versions, err = p.store.Commit(ctx, ops); err != nil {
			return err
		}
	}
	copy(claims, current)
	p.changed(ops, versions)
	note(claims, ops, versions, at)
	return nil
}

// note writes what operations have made of claims to their places.
func note(claims []Claim, ops []Op, versions []Version, at []int) {
	for i, op := range ops {
		claims[at[i]] = op.Claim
		claims[at[i]].Version = versions[i]
	}
}

// expected gives the claims as the store probably has them. What the caller has may be
// from another life of the store; so only what the pool has itself learned counts.
// It also gives the newest version of which the caller knows: an answer from before
// that is none.
func (p *Pool) expected(claims []Claim) (current []Claim, newest Version) {
	current = make([]Claim, len(claims))
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range claims {
		newest = max(newest, c.Version)
		current[i] = p.index.claims[c.Key]
	}
	return current, newest
}

// decideAll gives the operations that are needed, and the places of their claims.
func decideAll(claims, current []Claim, decide decide) (ops []Op, at []int, err error) {
	for i, c := range claims {
		op, isNeeded, err := decide(c, current[i])
		if err != nil {
			return nil, nil, err
		}
		if isNeeded {
			ops, at = append(ops, op), append(at, i)
		}
	}
	return ops, at, nil
}

func (p *Pool) changed(ops []Op, versions []Version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, op := range ops {
		if op.Delete {
			p.index.newest = max(p.index.newest, versions[i])
			p.index.forget(op.Claim.Key, versions[i])
			continue
		}
		c := op.Claim
		c.Version = versions[i]
		p.index.learn(c)
	}
}

func keysOf(claims []Claim) []Key {
	keys := make([]Key, len(claims))
	for i, c := range claims {
		keys[i] = c.Key
	}
	return keys
}
