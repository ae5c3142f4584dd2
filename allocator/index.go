package allocator

import (
	"math/rand/v2"
	"slices"
	"time"
)

// index is a pool's view of its store, with its own changes in flight. A key is taken
// in each range that has it if it has a claim, a change in flight, or a change whose
// outcome is unknown.
type index struct {
	parts  []*core
	claims map[Key]Claim
	// reserved are the claims that are not bound, with the time since which this
	// process has seen each of them.
	reserved map[Key]time.Time
	pending  map[Key]Owner // changes in flight
	unsure   map[Key]Owner // changes whose outcome is unknown
	freed    freed
	version  Version // of the store, when it was last loaded
	newest   Version // the highest version seen
	isLoaded bool
}

func newIndex() index {
	return index{
		claims: map[Key]Claim{}, reserved: map[Key]time.Time{}, pending: map[Key]Owner{}, unsure: map[Key]Owner{},
	}
}

// newParts makes the ranges of the configurations, and merges equal ones.
func newParts(ranges []Config) ([]*core, error) {
	var parts []*core
	for _, c := range ranges {
		i := slices.IndexFunc(parts, func(r *core) bool { return r.config.String() == c.String() })
		if i >= 0 {
			parts[i].config.Draining = parts[i].config.Draining && c.Draining
			continue
		}
		r, err := NewRange(c)
		if err != nil {
			return nil, err
		}
		parts = append(parts, &core{Range: r, taken: newSet(r.n), random: rand.Uint64N})
	}
	return parts, nil
}

func (x *index) setParts(parts []*core) {
	x.parts = parts
	for k := range x.claims {
		x.mark(k)
	}
	for k := range x.pending {
		x.mark(k)
	}
	for k := range x.unsure {
		x.mark(k)
	}
}

func (x *index) mark(k Key) {
	for _, r := range x.parts {
		if i, ok := r.Offset(k); ok && r.isFree(i) {
			r.take(i)
		}
	}
}

// unmark frees a key in all ranges unless it has a claim or a change.
func (x *index) unmark(k Key) {
	_, isClaimed := x.claims[k]
	_, isPending := x.pending[k]
	_, isUnsure := x.unsure[k]
	if isClaimed || isPending || isUnsure {
		return
	}
	for _, r := range x.parts {
		if i, ok := r.Offset(k); ok && !r.isFree(i) {
			r.put(i)
		}
	}
}

// isOpen reports whether a range that is not draining has the key.
func (x *index) isOpen(k Key) bool {
	return slices.ContainsFunc(x.parts, func(r *core) bool { return r.gives(k) })
}

// correct records the claim of a key, or that it had none, at a version of the store.
// It keeps later changes.
func (x *index) correct(k Key, c Claim, asOf Version) {
	if c.Version == 0 {
		x.forget(k, asOf)
	} else {
		x.learn(c)
	}
}

// learn records a claim, unless the index has a newer one or a later deletion.
func (x *index) learn(c Claim) {
	x.newest = max(x.newest, c.Version)
	old, known := x.claims[c.Key]
	if known && old.Version > c.Version || x.freed.has(c) {
		return
	}
	x.claims[c.Key] = c
	switch {
	case c.IsBound():
		delete(x.reserved, c.Key)
	case old.Version != c.Version:
		x.reserved[c.Key] = time.Now()
	}
	if !known {
		x.mark(c.Key)
	}
}

// isOver reports whether a reservation has ended by the clock, or this process has seen it
// unchanged for its TTL. The clock is not enough: a reservation that was made while a clock
// was ahead would keep its key until the other clocks reach its end.
func (x *index) isOver(c Claim, now time.Time) bool {
	if c.IsExpired(now) {
		return true
	}
	lasts := c.Expires.Sub(c.Since)
	if lasts <= 0 {
		lasts = DefaultTTL // invalid, so another program has written it
	}
	since, isReserved := x.reserved[c.Key]
	return isReserved && x.claims[c.Key].Version == c.Version && time.Since(since) >= lasts
}

// over returns the reservations that have ended.
func (x *index) over(now time.Time) (all []Claim) {
	for k := range x.reserved {
		if c := x.claims[k]; x.isOver(c, now) {
			all = append(all, c)
		}
	}
	return all
}

// forget removes a claim that was deleted by the change of a version.
func (x *index) forget(k Key, version Version) {
	x.freed.note(k, version)
	if old, known := x.claims[k]; !known || old.Version > version {
		return
	}
	delete(x.claims, k)
	delete(x.reserved, k)
	x.unmark(k)
}

// hold marks a key as taken by a change, in pending or unsure.
func (x *index) hold(k Key, owner Owner, set map[Key]Owner) {
	set[k] = owner
	x.mark(k)
}

func (x *index) drop(k Key, set map[Key]Owner) {
	delete(set, k)
	x.unmark(k)
}

// resolve removes keys from those whose outcome is unknown.
func (x *index) resolve(keys []Key) {
	for _, k := range keys {
		x.drop(k, x.unsure)
	}
}

// replace adopts all claims of the store at a version, except for later changes that the pool
// learned while it read them.
func (x *index) replace(claims []Claim, asOf Version) {
	still := make(map[Key]struct{}, len(claims))
	for _, c := range claims {
		still[c.Key] = struct{}{}
		x.learn(c)
	}
	for k := range x.claims {
		if _, ok := still[k]; !ok {
			x.forget(k, asOf)
		}
	}
	x.version, x.isLoaded = asOf, true
	x.newest = max(x.newest, asOf)
}
