package storm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// patience is how long a connection is waited for: more than a busy machine takes, and
// enough for the kernel to send twice what was lost.
func (o *options) patience() time.Duration { return 5 * time.Second }

// wrongFlight is a flight that went otherwise than it should.
type wrongFlight struct {
	flight
	text string
}

// calm waits until packets agree with [proxy.Route], which must be so in time after the
// last fault. Where something was changed by others, they must do so still when the agent
// has looked at it.
func (s *storm) calm() {
	if !s.agree(s.lastFault) {
		return
	}
	s.slowest = max(s.slowest, time.Since(s.lastFault))
	if s.judge.isBroken() {
		if !s.awaitLook() || !s.agree(time.Now()) {
			return
		}
		s.forget()
		s.judge.mended()
	}
	s.awaitHealth()
}

// agree waits until packets agree, and reports whether they do in time.
func (s *storm) agree(since time.Time) bool {
	const shortPatience = 1200 * time.Millisecond // The kernel sends again what was lost.
	snapshot, _, _, _ := s.model.now()
	all := someFlights(snapshot)
	for deadline := since.Add(s.options.limit()); ; {
		s.checkAgent()
		if len(s.judge.violated()) > 0 {
			return false
		}
		late := time.Now().After(deadline)
		wrong := s.checkAll(snapshot, all, shortPatience)
		if len(wrong) > 0 && late {
			// What is wrong now must be so with all patience.
			again := make([]flight, 0, len(wrong))
			for _, w := range wrong {
				again = append(again, w.flight)
			}
			if wrong = s.checkAll(snapshot, again, s.options.patience()); len(wrong) > 0 {
				s.disagree(wrong, since)
				return false
			}
		}
		if len(wrong) == 0 {
			return true
		}
	}
}

// checkAll gives what does not agree.
func (s *storm) checkAll(snapshot proxy.Snapshot, all []flight, patience time.Duration) []wrongFlight {
	wrong := s.check(snapshot, all, patience)
	if wrong = append(wrong, s.unapplied()...); len(wrong) > 0 {
		return wrong
	}
	return s.checkSpread(snapshot, all)
}

// awaitLook waits until the agent has looked at all that it has made.
func (s *storm) awaitLook() bool {
	begin := time.Now()
	for !s.model.looked(begin) {
		if time.Since(begin) > s.options.limit() {
			_, _, _, failure := s.model.now()
			s.judge.violate(invariantHealth, "the agent has not found the whole dataplane right for %v; last failure: %q", s.options.limit(), failure)
			return false
		}
		s.wait(time.Now().Add(20 * time.Millisecond))
	}
	return true
}

// disagree takes that packets do not agree although they should.
func (s *storm) disagree(wrong []wrongFlight, since time.Time) {
	var text strings.Builder
	for _, w := range wrong[:min(len(wrong), 5)] {
		fmt.Fprintf(&text, "\n  %s", w.text)
	}
	s.judge.violate(invariantAgreement, "%v after the last fault or repair %d flights go wrong:%s",
		time.Since(since).Round(time.Millisecond), len(wrong), text.String())
	s.judge.mu.Lock()
	healthy := s.judge.healthySince(since.Add(3*s.options.resync), time.Now())
	s.judge.mu.Unlock()
	if healthy {
		s.judge.violate(invariantHealth, "and health was good all the time from %v after that on", 3*s.options.resync)
	}
}

// awaitHealth waits until health is good, which it must be where packets agree.
func (s *storm) awaitHealth() {
	end := time.Now().Add(s.options.limit())
	for !isHealthy(s.t.Context(), s.world.node) {
		if time.Now().After(end) {
			_, _, _, failure := s.model.now()
			s.judge.violate(invariantHealth, "packets agree, and health is not good for %v; last failure: %q", s.options.limit(), failure)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// unapplied gives a wrong flight if the agent has not applied everything: with other
// endpoints than before, every connection may well go as it should all the same.
func (s *storm) unapplied() []wrongFlight {
	_, applied, sequence, failure := s.model.now()
	if applied == sequence {
		return nil
	}
	return []wrongFlight{{text: fmt.Sprintf("message %d of %d is applied; last failure: %q", applied, sequence, failure)}}
}

// checkSpread makes connections for some flights until all endpoints were seen that may
// answer, and gives those where one was never seen.
func (s *storm) checkSpread(snapshot proxy.Snapshot, all []flight) (wrong []wrongFlight) {
	const flights, mostEndpoints, tries = 6, 12, 20
	checked := 0
	for _, f := range all {
		v := proxy.Route(snapshot, f.packet(netip.AddrPortFrom(s.anySource(f), 0)))
		if v.Action != proxy.Forward || v.Affinity.Enabled() || len(v.Endpoints) < 2 || len(v.Endpoints) > mostEndpoints {
			continue
		}
		unseen := map[netip.AddrPort]bool{}
		for _, e := range v.Endpoints {
			unseen[e.Addr] = true
		}
		for n := 0; n < tries*len(v.Endpoints) && len(unseen) > 0; n++ {
			got := s.traffic.try(s.t.Context(), f, s.options.patience())
			if got.err != nil {
				break // What is seldom wrong shows here, too.
			}
			delete(unseen, got.answer.own)
		}
		if len(unseen) > 0 {
			wrong = append(wrong, wrongFlight{f, fmt.Sprintf("%s: never answered by %v", f, slices.Collect(maps.Keys(unseen)))})
		}
		if checked++; checked == flights {
			break
		}
	}
	return wrong
}

// forget has the node forget what it knows of connections.
func (s *storm) forget() {
	if err := s.world.flush(); err != nil {
		s.t.Fatal(err)
	}
}

// someFlights gives the flights that are looked at in a calm, some of them more than once.
func someFlights(snapshot proxy.Snapshot) []flight {
	const most = 200
	all := flights(snapshot)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	absent := absentFlights(snapshot)
	rand.Shuffle(len(absent), func(i, j int) { absent[i], absent[j] = absent[j], absent[i] })
	all = append(all, all...)[:min(most, 2*len(all))]
	return append(all, absent[:min(most/5, len(absent))]...)
}

// check makes connections, and gives those that go wrong.
func (s *storm) check(snapshot proxy.Snapshot, all []flight, patience time.Duration) (wrong []wrongFlight) {
	if s.judge.isBroken() {
		s.forget()
	}
	const atOnce = 200
	slots := make(chan struct{}, atOnce)
	var mu sync.Mutex
	var tried sync.WaitGroup
	for _, f := range all {
		slots <- struct{}{}
		tried.Go(func() {
			defer func() { <-slots }()
			if w := s.checkOne(snapshot, f, patience); w != nil {
				mu.Lock()
				defer mu.Unlock()
				wrong = append(wrong, *w)
			}
		})
	}
	tried.Wait()
	return wrong
}

func (s *storm) checkOne(snapshot proxy.Snapshot, f flight, patience time.Duration) *wrongFlight {
	if f.from == "" {
		return nil // It stood for something else.
	}
	if v := proxy.Route(snapshot, f.packet(netip.AddrPortFrom(s.anySource(f), 0))); v.Action == proxy.Drop {
		patience = min(patience, 250*time.Millisecond) // It is silence that is wanted.
	}
	got := s.traffic.try(s.t.Context(), f, patience)
	v := proxy.Route(snapshot, f.packet(got.source))
	if isAllowed(f, &v, &got) {
		return nil
	}
	return &wrongFlight{f, fmt.Sprintf("%s: %s; should: %s", f, &got, v.Reasons)}
}

// anySource gives an address that a flight may come from.
func (s *storm) anySource(f flight) netip.Addr {
	if f.source.IsValid() {
		return f.source
	}
	if leaf, prefix := f.from.leaf(); leaf != "" {
		return nth(ofFamily(leaf, f.family(), prefix), 1)
	}
	if !f.packet(netip.AddrPort{}).ToNode {
		return nodePortAddrs(f.family(), 0)[0].Addr()
	}
	return f.to.Addr()
}
