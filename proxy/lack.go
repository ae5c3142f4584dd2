package proxy

import (
	"fmt"
	"time"
)

// Lack returns what the tracker lacks to serve all traffic, and details for people; nothing if it
// lacks nothing.
func (t *tracker) Lack() (what, detail string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name, log := t.options.NodeName, &t.changeLog
	switch {
	case !log.synced:
		detail = fmt.Sprintf("Synced was not called; received: Services %d, EndpointSlices %d", log.total[0], log.total[1])
		if name != "" {
			detail += fmt.Sprintf(", Node %q %t", name, log.hasNode)
		}
		return "first objects", detail
	case name == "" || len(t.node.Addresses) > 0:
		return "", ""
	case log.hasNode:
		return "Node", fmt.Sprintf("the Node %q has no address, so node ports have none; check its status.addresses", name)
	}
	return "Node", fmt.Sprintf("the Node %q was not found, so node ports have no addresses, and the zone is unknown; check the configured node name", name)
}

// lacking is the optional ability of sources to name what they lack.
type lacking interface {
	Lack() (what, detail string)
}

const (
	// firstLack is the time until what a Source lacks is logged. Each time that it is
	// logged again takes twice as long, up to maxLack.
	firstLack = 5 * time.Second
	maxLack   = 10 * time.Minute
)

// lack is what the Source of a Runner lacks.
type lack struct {
	what string // empty for nothing
	// since is when it was found, next when to log it, after pause since the last time.
	since, next time.Time
	pause       time.Duration
}

// checkLack logs what the Source lacks for some time, and when it does not any more. It returns
// when it must be called again; zero for not before the next snapshot.
func (s *runState) checkLack() time.Time {
	source, can := s.Source.(lacking)
	if !can {
		return time.Time{}
	}
	what, detail := source.Lack()
	now, l := time.Now(), &s.lack
	since := func() string { return now.Sub(l.since).Round(time.Millisecond).String() }
	if what != l.what {
		if l.pause > firstLack {
			s.Logger.Info("no longer waiting", "for", l.what, "waited", since())
		}
		*l = lack{what: what, since: now, next: now.Add(firstLack), pause: firstLack}
	}
	if what == "" {
		return time.Time{}
	}
	if !now.Before(l.next) {
		s.Logger.Info("waiting", "for", what, "detail", detail, "waited", since())
		l.pause = min(2*l.pause, maxLack)
		l.next = now.Add(l.pause)
	}
	return l.next
}
