package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Bind makes reservations last until they are released: all of them, or none.
// Binding a bound claim again is no error. If a reservation has ended and its key was
// taken, or was released, the error is [ErrExpired], and the keys may have other
// owners. If the store does not answer after a write, it is [ErrUnknown]: bind again to
// find out.
//
// The store decides, also about a claim that is bound already: it may have been
// released since.
func (p *Pool) Bind(ctx context.Context, claims ...Claim) ([]Claim, error) {
	now := instant(p.now())
	once, indexes := distinct(claims)
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
	for i, at := range indexes {
		bound[i] = once[at]
	}
	return bound, nil
}

// distinct returns every allocation once, and for each claim the index of its allocation.
func distinct(claims []Claim) (once []Claim, indexes []int) {
	type allocation struct {
		key   Key
		token uint64
	}
	indexes = make([]int, len(claims))
	seen := make(map[allocation]int, len(claims))
	for i, c := range claims {
		at, known := seen[allocation{c.Key, c.Token}]
		if !known {
			at = len(once)
			seen[allocation{c.Key, c.Token}] = at
			once = append(once, c)
		}
		indexes[i] = at
	}
	return once, indexes
}

// Release frees reserved and bound keys. A claim with a token frees only its own
// allocation: releasing it late or again does nothing, also if the key has a new owner. A
// claim with token 0 needs only key and owner, and frees any allocation of that owner;
// if another owner has the key, the key stays allocated, and the error is
// [ErrNotOwner]. Release still frees the other claims then. After any other error some
// claims may be released; releasing them again does no harm.
func (p *Pool) Release(ctx context.Context, claims ...Claim) error {
	named, foreign, err := p.nameAllocations(ctx, claims)
	if err != nil {
		return err
	}
	once, _ := distinct(named)
	err = p.change(ctx, once, func(want, current Claim) (Op, bool, error) {
		isSame := current.Version != 0 && current.Token == want.Token
		return Op{Claim: current, Delete: true}, isSame, nil
	})
	return errors.Join(foreign, err)
}

// nameAllocations fills in missing tokens. It leaves out claims that are free, and
// claims of another owner, for which foreign is the error.
func (p *Pool) nameAllocations(ctx context.Context, claims []Claim) (named []Claim, foreign, err error) {
	if !slices.ContainsFunc(claims, lacksToken) {
		return claims, nil, nil
	}
	nameless := slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { return !lacksToken(c) })
	named = slices.DeleteFunc(slices.Clone(claims), lacksToken)
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

func lacksToken(c Claim) bool { return c.Token == 0 }

// expire frees the reservations that have ended.
func (p *Pool) expire(ctx context.Context) error {
	now := p.now()
	p.mu.Lock()
	over := p.index.over(now)
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

// decide says how to change a claim when the store holds the current one: by an
// operation; not at all, because it is done; or an error to give up.
type decide func(want, current Claim) (Op, bool, error)

// change makes the changes that decide decides for the claims, which are distinct, and writes
// the new state into them. After an error it reads the store, which has the outcome of a
// write, and decides again. Before it reports that nothing has to be done, it reads the
// store too, because the caller's claims and the index may be outdated.
func (p *Pool) change(ctx context.Context, claims []Claim, decide decide) error {
	if len(claims) == 0 {
		return nil
	}
	c := changing{claims: claims, decide: decide}
	var newest Version
	c.current, newest = p.expected(claims)
	for range attempts {
		ended, err := p.attempt(ctx, &c)
		if ended {
			return err
		}
		if c.current, err = p.read(ctx, keysOf(claims), newest); err != nil {
			return outcome(c.last, err)
		}
		c.isRead = true
	}
	return fmt.Errorf("giving up after %d attempts: %w", attempts, c.last)
}

// changing is a change in progress.
type changing struct {
	claims, current []Claim
	decide          decide
	isRead          bool  // current is from the store
	failures        int   // of writes, for other reasons than other pools
	last            error // of the last write
}

// attempt decides and writes once. It reports whether the change has ended, and with which
// error.
func (p *Pool) attempt(ctx context.Context, c *changing) (ended bool, err error) {
	ops, at, err := decideAll(c.claims, c.current, c.decide)
	isSure := c.isRead || err == nil && len(ops) == len(c.claims)
	switch {
	case !isSure:
		return false, nil
	case err != nil:
		return true, err
	case len(ops) > 0 && c.failures == maxFailures:
		return true, fmt.Errorf("giving up after %d writes: %w", c.failures, c.last)
	}
	if err = p.commit(ctx, c.claims, c.current, ops, at); err == nil || errors.Is(err, ErrInvalid) {
		return true, err
	}
	c.last = err
	if !isRace(err, ops) {
		c.failures++
	}
	if errors.Is(err, ErrUnknown) {
		c.decide = keeping(c.decide)
	}
	return false, nil
}

// isRace reports whether a write failed because another pool was faster. A conflict with the
// very version that the write expected is a refusal.
func isRace(err error, ops []Op) bool {
	conflict, isConflict := errors.AsType[*ConflictError](err)
	if !isConflict {
		return errors.Is(err, ErrConflict)
	}
	return conflict.Current.Version == 0 || conflict.Current.Version != presumed(ops, conflict.Key)
}

// keeping decides as decide does, after a write that the store may still undo. It also writes
// again what is done already: undoing has the version of the first write as its precondition.
func keeping(decide decide) decide {
	return func(want, current Claim) (Op, bool, error) {
		op, isNeeded, err := decide(want, current)
		if err == nil && !isNeeded && current.Version != 0 && current.Token == want.Token {
			return Op{Claim: current}, true, nil
		}
		return op, isNeeded, err
	}
}

// outcome is the error when reading failed: if a write failed before, its outcome is
// unknown.
func outcome(writeErr, readErr error) error {
	if writeErr == nil {
		return readErr
	}
	return fmt.Errorf("%w: %w", ErrUnknown, errors.Join(writeErr, readErr))
}

// commit commits the operations, which are for the claims at the indexes at, and writes
// the new state of all claims into claims.
func (p *Pool) commit(ctx context.Context, claims, current []Claim, ops []Op, at []int) error {
	var versions []Version
	if len(ops) > 0 {
		defer p.endRequest(p.beginRequest())
		var err error
		if versions, err = p.store.Commit(ctx, ops); err != nil {
			return err
		}
	}
	copy(claims, current)
	p.changed(ops, versions)
	for i, op := range ops {
		claims[at[i]] = op.Claim
		claims[at[i]].Version = versions[i]
	}
	return nil
}

// expected returns the claims as the store probably has them. The caller's claims may be
// from before the store was restored, so expected takes them from the index. It also
// gives the newest version that the caller knows: the reply of the store must not be older.
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

// decideAll returns the operations that are needed, and the indexes of their claims.
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
