package repair

import (
	"time"

	"github.com/vipkit/vipkit/allocator"
)

// sightings remember for how long this process has seen claims unchanged whose own times
// are meaningless. They use the monotonic clock.
type sightings struct {
	first map[allocator.Key]sighting
}

type sighting struct {
	version allocator.Version
	at      time.Time
}

// record records the claims that match, and forgets all others.
func (s *sightings) record(claims []allocator.Claim, matches func(allocator.Claim) bool) {
	now, next := time.Now(), map[allocator.Key]sighting{}
	for _, c := range claims {
		if !matches(c) {
			continue
		}
		known, isKnown := s.first[c.Key]
		if !isKnown || known.version != c.Version {
			known = sighting{version: c.Version, at: now}
		}
		next[c.Key] = known
	}
	s.first = next
}

// age is how long a recorded claim has been seen unchanged.
func (s *sightings) age(c allocator.Claim) time.Duration { return time.Since(s.first[c.Key].at) }
