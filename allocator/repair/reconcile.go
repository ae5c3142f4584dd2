package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/vipkit/vipkit/allocator"
)

// DefaultGrace is how old a claim is before it can be taken from its owner.
const DefaultGrace = time.Minute

// batch is how many changes are made at once.
const batch = 64

// Options say how to repair. Only Ranges is needed.
type Options struct {
	// Ranges are all ranges, also those that are draining.
	Ranges []allocator.Config
	// Grace is how old a claim must be before a pass frees it or gives it to another
	// owner: [DefaultGrace] if 0. It must be longer than each of these: how outdated the
	// list of owners can be, the time between binding a claim and storing its object, and
	// the difference between the clocks of the processes that share the store.
	Grace time.Duration
	// Force allows a list without any use, and any number of claims that a pass takes from their
	// owners. Otherwise a pass takes half of the bound claims at most, or [MinRemovals] if that is
	// more, because an incomplete list of owners would free many.
	Force bool
	// Now is the clock, [time.Now] by default.
	Now func() time.Time
}

// MinRemovals is how many claims a pass may always take from owners.
const MinRemovals = 16

// Creator is a store that begins without a map, and can make one.
type Creator interface {
	// Create makes a map with these claims from its first moment, so that their
	// keys are never free. If there is a map, Create changes nothing.
	Create(ctx context.Context, claims ...allocator.Claim) error
}

// Reconcile compares a store with the uses that owners lists, mends the differences that
// a change of the store can mend, and gives all findings, in order of the keys.
//
// Reconcile calls owners once, after it has read the store. The list must have all uses
// of all programs that allocate from the same store, the oldest first: of two equal
// owners the first one wins.
//
// A store without a map gets one, with a claim for every use, if it is a [Creator]. The pass
// then reads the store again, as another process may have been faster.
//
// A wrong list of owners must not free their keys. So a list without any use is
// [ErrNoOwners], and nothing is changed; and if a pass would take more claims from owners
// than [Options].Force says, it takes none, mends everything else, and the error is a
// [TooManyError].
//
// If a claim is dated further in the future than Grace, the clock of its writer was ahead,
// or that of this process is behind. It is only reported, until a [Controller] has seen it
// unchanged for Grace.
//
// With an error the findings are those made before it.
func Reconcile(ctx context.Context, store allocator.Store, owners func(context.Context) ([]Use, error), o Options) ([]Finding, error) {
	return reconcile(ctx, store, owners, o, &sightings{})
}

func reconcile(ctx context.Context, store allocator.Store, owners func(context.Context) ([]Use, error), o Options, seen *sightings) ([]Finding, error) {
	p, err := newPass(o)
	if err != nil {
		return nil, err
	}
	state, err := store.Load(ctx)
	isNew := errors.Is(err, allocator.ErrNoMap)
	creator, canCreate := store.(Creator)
	if err != nil && (!isNew || !canCreate) {
		return nil, fmt.Errorf("reading the store: %w", err)
	}
	uses, err := owners(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the owners: %w", err)
	}
	users := p.read(uses)
	p.spelling = len(p.findings)
	seen.record(state.Claims, p.isFromFuture)
	p.seen = seen
	p.compare(state.Claims, users)
	switch {
	case len(users) == 0 && !o.Force && (isNew || p.removals() > 0):
		err = ErrNoOwners
	case isNew:
		if err = p.create(ctx, creator); err == nil {
			err = p.startAgain(ctx, store, users)
		}
	default:
		err = p.finish(ctx, store, state.Claims)
	}
	slices.SortStableFunc(p.findings, func(a, b Finding) int {
		return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Problem, b.Problem))
	})
	return p.findings, err
}

// pass is one comparison.
type pass struct {
	options  Options
	ranges   []*allocator.Range
	now      time.Time
	findings []Finding
	spelling int // how many findings are about spellings; these come first
	changes  []change
	unclear  map[allocator.Owner]struct{} // of uses that cannot be read
	seen     *sightings                   // of claims from the future
}

// change is the operation that mends a finding.
type change struct {
	op        allocator.Op
	finding   int  // index in pass.findings
	isRemoval bool // takes a bound key from its owner
}

func newPass(o Options) (*pass, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	p := &pass{options: o, now: o.Now().Round(0).UTC(), unclear: map[allocator.Owner]struct{}{}}
	for _, c := range o.Ranges {
		r, err := allocator.NewRange(c)
		if err != nil {
			return nil, err
		}
		p.ranges = append(p.ranges, r)
	}
	return p, nil
}

func (p *pass) isInRange(k allocator.Key) bool {
	return slices.ContainsFunc(p.ranges, func(r *allocator.Range) bool {
		_, ok := r.Offset(k)
		return ok
	})
}

// compare finds all differences.
func (p *pass) compare(claims []allocator.Claim, users map[allocator.Key][]allocator.Owner) {
	held := make(map[allocator.Key]allocator.Claim, len(claims))
	for _, c := range claims {
		held[c.Key] = c
	}
	for k, owners := range users {
		p.compareUsed(k, owners, held[k])
	}
	for k, c := range held {
		if len(users[k]) == 0 {
			p.compareUnused(c)
		}
	}
}

// read returns the owners of each key, each once.
func (p *pass) read(uses []Use) map[allocator.Key][]allocator.Owner {
	users := map[allocator.Key][]allocator.Owner{}
	for _, u := range uses {
		k, err := parse(u.Text)
		switch {
		case err != nil || u.Owner == "":
			p.found(Finding{Problem: Invalid, Owner: u.Owner, Text: u.Text})
			p.unclear[u.Owner] = struct{}{}
			continue
		case k.String() != u.Text:
			p.found(Finding{Problem: NonCanonical, Key: k, Owner: u.Owner, Text: u.Text})
		}
		if !slices.Contains(users[k], u.Owner) {
			users[k] = append(users[k], u.Owner)
		}
	}
	return users
}

func (p *pass) found(f Finding) { p.findings = append(p.findings, f) }

// compareUsed compares a key that is used with its claim.
func (p *pass) compareUsed(k allocator.Key, owners []allocator.Owner, c allocator.Claim) {
	if !p.isInRange(k) {
		for _, owner := range owners {
			p.found(Finding{Problem: OutOfRange, Key: k, Owner: owner})
		}
		return
	}
	rightful := owners[0]
	if slices.Contains(owners, c.Owner) {
		rightful = c.Owner
	}
	for _, owner := range owners {
		if owner != rightful {
			p.found(Finding{Problem: Duplicate, Key: k, Owner: owner, Holder: rightful})
		}
	}
	switch {
	case c.Version == 0 || c.IsExpired(p.now), c.Owner == rightful && !c.IsBound():
		p.change(Finding{Problem: Missing, Key: k, Owner: rightful}, p.claimFor(rightful, c, k), false)
	case c.Owner == rightful:
	case p.isYoung(c), p.isUndated(c):
		// The owner's object may not be stored yet.
		p.found(Finding{Problem: WrongOwner, Key: k, Owner: rightful, Holder: c.Owner})
	default:
		p.change(Finding{Problem: WrongOwner, Key: k, Owner: rightful, Holder: c.Owner}, p.claimFor(rightful, c, k), true)
	}
}

// isYoung reports whether a claim is too young to be freed. A reservation is young until
// it ends.
func (p *pass) isYoung(c allocator.Claim) bool {
	switch {
	case p.isFromFuture(c):
		return false
	case !c.IsBound():
		return !c.IsExpired(p.now)
	}
	return p.now.Sub(c.Since) < p.options.Grace
}

// isFromFuture reports whether a claim is dated further in the future than clocks can
// differ. Its times are meaningless.
func (p *pass) isFromFuture(c allocator.Claim) bool { return p.now.Sub(c.Since) < -p.options.Grace }

// isUndated reports whether a claim is from the future, and this process has not yet seen
// it for Grace, or for the duration of a reservation.
func (p *pass) isUndated(c allocator.Claim) bool {
	safe := p.options.Grace
	if !c.IsBound() {
		safe = max(safe, c.Expires.Sub(c.Since))
	}
	return p.isFromFuture(c) && p.seen.age(c) < safe
}

// claimFor returns the operation that binds a key to owner. The allocation stays the same
// if owner had the key before.
func (p *pass) claimFor(owner allocator.Owner, old allocator.Claim, k allocator.Key) allocator.Op {
	c := allocator.Claim{Key: k, Owner: owner, Token: max(1, rand.Uint64()), Version: old.Version, Since: p.now}
	if old.Owner == owner {
		c.Token = old.Token
	}
	return allocator.Op{Claim: c}
}

// compareUnused handles a claim whose key is unused. A reservation that has ended is
// freed in any range.
func (p *pass) compareUnused(c allocator.Claim) {
	if p.isYoung(c) {
		return
	}
	f := Finding{Problem: Orphaned, Key: c.Key, Owner: c.Owner}
	if !p.isInRange(c.Key) && c.IsBound() {
		f.Problem = OutOfRange
	}
	if p.isUndated(c) || f.Problem == OutOfRange {
		p.found(f)
		return
	}
	p.change(f, allocator.Op{Claim: c, Delete: true}, c.IsBound())
}

// change records a finding and the operation that mends it, with whether that takes a bound key
// from its owner.
func (p *pass) change(f Finding, op allocator.Op, isRemoval bool) {
	p.found(f)
	// An unreadable use may stand for any key of its owner.
	if _, isUnclear := p.unclear[cmp.Or(f.Holder, f.Owner)]; isRemoval && isUnclear {
		return
	}
	p.changes = append(p.changes, change{op: op, finding: len(p.findings) - 1, isRemoval: isRemoval})
}

func (p *pass) removals() (n int) {
	for _, c := range p.changes {
		if c.isRemoval {
			n++
		}
	}
	return n
}

// limit drops all removals if they are too many.
func (p *pass) limit(claims []allocator.Claim) error {
	bound := 0
	for _, c := range claims {
		if c.IsBound() {
			bound++
		}
	}
	most, n := max(MinRemovals, bound/2), p.removals()
	if p.options.Force || n <= most {
		return nil
	}
	p.changes = slices.DeleteFunc(p.changes, func(c change) bool { return c.isRemoval })
	return &TooManyError{Removals: n, Most: most}
}

// finish mends what the options allow.
func (p *pass) finish(ctx context.Context, store allocator.Store, claims []allocator.Claim) error {
	return errors.Join(p.limit(claims), p.mend(ctx, store))
}

// mend commits the changes, many at once; one by one if the store refuses them, so that a change
// that it will never accept does not prevent others.
func (p *pass) mend(ctx context.Context, store allocator.Store) error {
	var refused error
	for many := range slices.Chunk(p.changes, batch) {
		err := p.commit(ctx, store, many)
		if isRefused(err) {
			var invalid error
			invalid, err = p.mendEach(ctx, store, many)
			refused = errors.Join(refused, invalid)
		}
		if err != nil {
			return fmt.Errorf("mending: %w", errors.Join(refused, err))
		}
	}
	if refused != nil {
		return fmt.Errorf("mending: %w", refused)
	}
	return nil
}

// mendEach commits changes one by one. It gives the errors of invalid ones, and the error that
// ended it; the next pass tries again after a conflict.
func (p *pass) mendEach(ctx context.Context, store allocator.Store, changes []change) (invalid, err error) {
	for i := range changes {
		err := p.commit(ctx, store, changes[i:i+1])
		switch {
		case !isRefused(err) && err != nil:
			return invalid, err
		case !errors.Is(err, allocator.ErrConflict):
			invalid = errors.Join(invalid, err)
		}
	}
	return invalid, nil
}

// isRefused reports whether an error of the store says that nothing was written, because of a
// single change.
func isRefused(err error) bool {
	return errors.Is(err, allocator.ErrConflict) || errors.Is(err, allocator.ErrInvalid) || errors.Is(err, allocator.ErrNotInRange)
}

func (p *pass) commit(ctx context.Context, store allocator.Store, changes []change) error {
	var ops []allocator.Op
	for _, c := range changes {
		ops = append(ops, c.op)
	}
	if _, err := store.Commit(ctx, ops); err != nil {
		return err
	}
	for _, c := range changes {
		p.findings[c.finding].Mended = true
	}
	return nil
}
