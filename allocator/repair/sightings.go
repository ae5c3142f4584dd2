package repair

import (
	"time"

	"github.com/vipkit/vipkit/allocator"
)

// sightings remember since when claims have not changed, of those whose own dates are worth
// nothing. The time between passes is what this process has itself seen go by, whatever
// clocks say.
type sightings struct {
	first map[allocator.Key]sighting
}

type sighting struct {
	version allocator.Version
	at      time.Time
}

// look takes note of those claims that are wanted, and forgets all others.
func (s *sightings) look(claims []allocator.Claim, isWanted func(allocator.Claim) bool) {
	now, next := time.Now(), map[allocator.Key]sighting{}
	for _, c := range claims {
		if !isWanted(c) {
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

// age is at least how old a claim is that was noted.
func (s *sightings) age(c allocator.Claim) time.Duration { return time.Since(s.first[c.Key].at) }
