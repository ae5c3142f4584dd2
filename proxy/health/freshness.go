package health

import "time"

// freshness is how old that is what is known of the dataplane. A zero time is
// one that does not count.
type freshness struct {
	timeout time.Duration
	// pending is since when there is something that is not programmed.
	pending time.Time
	// updated is when the dataplane was last known to hold what it must.
	updated time.Time
	// verified is when all of the dataplane was last known to be right.
	verified time.Time
}

func (f *freshness) queue(now time.Time) {
	if f.pending.IsZero() {
		f.pending = now
	}
}

func (f *freshness) achieve(now time.Time) { f.pending, f.updated = time.Time{}, now }

func (f *freshness) verify(now time.Time) {
	f.verified = now
	if f.pending.IsZero() {
		f.updated = now
	}
}

func (f *freshness) healthy(now time.Time) bool {
	late := func(since time.Time) bool { return !since.IsZero() && now.Sub(since) >= f.timeout }
	return !late(f.pending) && !late(f.verified)
}
