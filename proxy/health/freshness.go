package health

import "time"

// freshness is the age of what is known of the dataplane. A zero time does not count.
type freshness struct {
	timeout time.Duration
	// pending is when the oldest change that is not programmed began to wait.
	pending time.Time
	// updated is when the dataplane last matched the newest snapshot.
	updated time.Time
	// verified is when the whole dataplane was last found right.
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
