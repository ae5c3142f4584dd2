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
	// Ranges are all ranges that there are, those that are draining, too.
	Ranges []allocator.Config
	// Policy says what to do about a problem; what it does not name is treated
	// as [Default].
	Policy map[Problem]Action
	// Grace is how old a claim is before it can be freed or given to another
	// owner: [DefaultGrace] if 0. It must be longer than the owners that are listed
	// can be out of date, than it takes to store an object after its claim was
	// bound, and than the clocks of those who share the store differ.
	Grace time.Duration
	// MaxRemovals is how many claims one pass may take from their owners, which
	// a list of owners that lacks many would make it do: 0 means half of those that
	// are bound, but [MinRemovals] in any case; a negative number means any.
	MaxRemovals int
	// AllowNoOwners says that a list without any use may be true. Otherwise it is
	// taken for a mistake.
	AllowNoOwners bool
	// Now is the clock, [time.Now] by default.
	Now func() time.Time
}

// MinRemovals is what a pass may always take from owners, unless
// [Options].MaxRemovals says otherwise.
const MinRemovals = 16

// Creator is a store that begins without a map, and can make one.
type Creator interface {
	// Create makes a map that holds these claims from its first moment on, so
	// that nobody is given what one of them has. Where there is a map, it changes
	// nothing.
	Create(ctx context.Context, claims ...allocator.Claim) error
}

// Reconcile compares a store with the uses that owners lists, mends what the
// policy says, and gives everything that it found, in order of the keys.
//
// Owners is called once, after the store was read. It must list all uses, those of
// whoever else allocates from the same store, too, and the oldest first: of two
// owners that nothing else tells apart the first one wins.
//
// A store without a map gets one, with a claim for every use, if it is a [Creator].
//
// A list of owners that is wrong must not free what they have. So one without any use
// is [ErrNoOwners], and nothing is changed; and where more claims would be taken from
// owners than the options allow, none is, everything else is mended, and the error is
// a [TooManyError].
//
// A claim from further in the future than Grace was dated by a clock that is ahead, or
// this one is behind; nobody can tell which. It is only reported, until a [Controller]
// has seen it unchanged for as long as Grace.
//
// With an error the findings are what was found so far.
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
	seen.look(state.Claims, p.isFromFuture)
	p.seen = seen
	p.compare(state.Claims, users)
	switch {
	case len(users) == 0 && !o.AllowNoOwners && (isNew || p.removals() > 0):
		err = ErrNoOwners
	case isNew:
		err = p.create(ctx, creator)
	default:
		err = p.limit(state.Claims)
		err = errors.Join(err, p.mend(ctx, store))
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
	changes  []change
	unclear  map[allocator.Owner]struct{} // of uses that cannot be read
	seen     *sightings                   // of claims from the future
}

// change is what would mend a finding, by its place.
type change struct {
	op      allocator.Op
	finding int
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

// read gives the owners of each key, each once.
func (p *pass) read(uses []Use) map[allocator.Key][]allocator.Owner {
	users := map[allocator.Key][]allocator.Owner{}
	for _, u := range uses {
		k, err := allocator.ParseKey(u.Text)
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

// compareUsed looks at a key that somebody uses.
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
		p.change(Finding{Problem: Missing, Key: k, Owner: rightful}, p.claimFor(rightful, c, k))
	case c.Owner == rightful:
	case p.isYoung(c), p.isUndated(c):
		// Its owner may be about to appear.
		p.found(Finding{Problem: WrongOwner, Key: k, Owner: rightful, Holder: c.Owner})
	default:
		p.change(Finding{Problem: WrongOwner, Key: k, Owner: rightful, Holder: c.Owner}, p.claimFor(rightful, c, k))
	}
}

// isYoung reports whether a claim is still safe from being taken away. A
// reservation is until it ends.
func (p *pass) isYoung(c allocator.Claim) bool {
	switch {
	case p.isFromFuture(c):
		return false
	case !c.IsBound():
		return !c.IsExpired(p.now)
	}
	return p.now.Sub(c.Since) < p.options.Grace
}

// isFromFuture reports whether a claim is dated later than clocks differ. What it says of
// its age, and of its end, counts for nothing.
func (p *pass) isFromFuture(c allocator.Claim) bool { return p.now.Sub(c.Since) < -p.options.Grace }

// isUndated reports whether a claim is from the future, and has not been seen for so long
// that it is old by any clock: a reservation until it would have ended.
func (p *pass) isUndated(c allocator.Claim) bool {
	safe := p.options.Grace
	if !c.IsBound() {
		safe = max(safe, c.Expires.Sub(c.Since))
	}
	return p.isFromFuture(c) && p.seen.age(c) < safe
}

// claimFor gives the write that makes owner have a key for good. Only if it had
// the key before does the allocation stay the same.
func (p *pass) claimFor(owner allocator.Owner, old allocator.Claim, k allocator.Key) allocator.Op {
	c := allocator.Claim{Key: k, Owner: owner, Token: max(1, rand.Uint64()), Version: old.Version, Since: p.now}
	if old.Owner == owner {
		c.Token = old.Token
	}
	return allocator.Op{Claim: c}
}

// compareUnused looks at a claim that no owner knows of. A reservation that has ended
// is nobody's, in whatever range.
func (p *pass) compareUnused(c allocator.Claim) {
	if p.isYoung(c) {
		return
	}
	f := Finding{Problem: Orphaned, Key: c.Key, Owner: c.Owner}
	if !p.isInRange(c.Key) && c.IsBound() {
		f.Problem = OutOfRange
	}
	if p.isUndated(c) {
		p.found(f)
		return
	}
	p.change(f, allocator.Op{Claim: c, Delete: true})
}

// change notes a finding and, unless the policy forbids it, what mends it.
func (p *pass) change(f Finding, op allocator.Op) {
	p.found(f)
	action := p.options.Policy[f.Problem]
	c := change{op: op, finding: len(p.findings) - 1}
	if action != Mend && (action != Default || f.Problem == OutOfRange) {
		return
	}
	if holder := cmp.Or(f.Holder, f.Owner); p.isRemoval(c) && p.mayUse(holder) {
		return
	}
	p.changes = append(p.changes, c)
}

// mayUse reports whether an owner says something that cannot be read: any of what is
// held for it may be what it means.
func (p *pass) mayUse(owner allocator.Owner) bool {
	_, isUnclear := p.unclear[owner]
	return isUnclear
}

// isRemoval reports whether a change takes from an owner what it has for good.
func (p *pass) isRemoval(c change) bool {
	return c.op.Delete && c.op.Claim.IsBound() || p.findings[c.finding].Problem == WrongOwner
}

func (p *pass) removals() (n int) {
	for _, c := range p.changes {
		if p.isRemoval(c) {
			n++
		}
	}
	return n
}

// limit drops all removals if they are too many.
func (p *pass) limit(claims []allocator.Claim) error {
	most, n := p.options.MaxRemovals, p.removals()
	if most == 0 {
		bound := 0
		for _, c := range claims {
			if c.IsBound() {
				bound++
			}
		}
		most = max(MinRemovals, bound/2)
	}
	if most < 0 || n <= most {
		return nil
	}
	p.changes = slices.DeleteFunc(p.changes, p.isRemoval)
	return &TooManyError{Removals: n, Most: most}
}

func (p *pass) mended(changes []change) {
	for _, c := range changes {
		p.findings[c.finding].Mended = true
	}
}

func (p *pass) create(ctx context.Context, store Creator) error {
	if slices.ContainsFunc(p.findings, func(f Finding) bool { return f.Problem == Missing }) && p.options.Policy[Missing] == Report {
		return fmt.Errorf("creating the map: %w: what owners have is only reported, and would be handed out again", allocator.ErrNoMap)
	}
	var claims []allocator.Claim
	for _, c := range p.changes {
		claims = append(claims, c.op.Claim)
	}
	if err := store.Create(ctx, claims...); err != nil {
		return fmt.Errorf("creating the map: %w", err)
	}
	p.mended(p.changes)
	return nil
}

// mend makes the changes, many at once; where one of them is in conflict, one by
// one.
func (p *pass) mend(ctx context.Context, store allocator.Store) error {
	for many := range slices.Chunk(p.changes, batch) {
		err := p.commit(ctx, store, many)
		for i := 0; errors.Is(err, allocator.ErrConflict) && i < len(many); i++ {
			if one := p.commit(ctx, store, many[i:i+1]); !errors.Is(one, allocator.ErrConflict) && one != nil {
				err = one
			}
		}
		if err != nil && !errors.Is(err, allocator.ErrConflict) {
			return fmt.Errorf("mending: %w", err)
		}
	}
	return nil
}

func (p *pass) commit(ctx context.Context, store allocator.Store, changes []change) error {
	var ops []allocator.Op
	for _, c := range changes {
		ops = append(ops, c.op)
	}
	_, err := store.Commit(ctx, ops)
	if err == nil {
		p.mended(changes)
	}
	return err
}
