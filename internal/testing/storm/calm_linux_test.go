package storm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// patience returns how long to wait for a connection: long enough for a busy machine, and
// for two retransmissions by the kernel.
func (o *options) patience() time.Duration { return 5 * time.Second }

// wrongFlight is a flight with a wrong outcome, which text describes.
type wrongFlight struct {
	flight
	text string
}

// calm waits until packets agree with [proxy.Route]. They must do so within the limit, counted
// from the end of the last fault. If the fault may have broken connections, calm then waits until
// the agent has verified the dataplane, and checks again.
func (s *storm) calm() {
	if !s.awaitAgreement(s.lastFault) {
		return
	}
	s.slowest = max(s.slowest, time.Since(s.lastFault))
	if s.judge.isBroken() {
		if !s.awaitVerified() || !s.awaitAgreement(time.Now()) {
			return
		}
		testenv.NoError(s.t, s.world.flushConntrack())
		s.judge.repaired()
	}
	if s.options.isIPVS() {
		s.checkForeign()
		s.world.ipvs.ownerLoss = ""
	}
	s.awaitHealth()
}

// awaitAgreement waits until packets agree, and reports whether they do within the limit.
func (s *storm) awaitAgreement(since time.Time) bool {
	const shortPatience = 1200 * time.Millisecond // long enough for one retransmission by the kernel
	snapshot, _, _, _ := s.model.now()
	all := someFlights(snapshot, s.options.checked)
	for deadline := since.Add(s.options.limit()); ; {
		s.checkAgent()
		if len(s.judge.violated()) > 0 {
			return false
		}
		late := time.Now().After(deadline)
		if !late && len(s.unapplied()) > 0 {
			time.Sleep(20 * time.Millisecond) // Connections would only keep the agent from the processor.
			continue
		}
		wrong := s.checkAll(snapshot, all, shortPatience)
		if len(wrong) > 0 && late {
			// Only flights that are still wrong with the full patience count.
			again := make([]flight, 0, len(wrong))
			for _, w := range wrong {
				again = append(again, w.flight)
			}
			if wrong = s.checkAll(snapshot, again, s.options.patience()); len(wrong) > 0 {
				s.reportDisagreement(wrong, since)
				return false
			}
		}
		if len(wrong) == 0 {
			return true
		}
	}
}

// checkAll returns all flights that do not agree.
func (s *storm) checkAll(snapshot proxy.Snapshot, all []flight, patience time.Duration) []wrongFlight {
	wrong := s.check(snapshot, all, patience)
	if wrong = append(wrong, s.unapplied()...); len(wrong) > 0 {
		return wrong
	}
	return s.checkSpread(snapshot, all)
}

// awaitVerified waits until the agent has verified the whole dataplane in a check that began
// after the call.
func (s *storm) awaitVerified() bool {
	begin := time.Now()
	for !s.model.verifiedSince(begin) {
		if time.Since(begin) > s.options.limit() {
			_, _, _, failure := s.model.now()
			s.judge.violate(invariantHealth, "the agent has not verified the whole dataplane for %v; last failure: %q", s.options.limit(), failure)
			return false
		}
		s.wait(time.Now().Add(20 * time.Millisecond))
	}
	return true
}

// reportDisagreement reports the violation that packets do not agree.
func (s *storm) reportDisagreement(wrong []wrongFlight, since time.Time) {
	var text strings.Builder
	for _, w := range wrong[:min(len(wrong), 5)] {
		fmt.Fprintf(&text, "\n  %s", w.text)
	}
	s.judge.violate(invariantAgreement, "%v after the last fault or repair %d flights are wrong:%s",
		time.Since(since).Round(time.Millisecond), len(wrong), text.String())
	s.judge.mu.Lock()
	healthy := s.judge.healthySince(since.Add(3*s.options.resync), time.Now())
	s.judge.mu.Unlock()
	if healthy {
		s.judge.violate(invariantHealth, "health was good all the time, beginning %v after that fault or repair", 3*s.options.resync)
	}
}

// awaitHealth waits until health is good, which it must be when packets agree.
func (s *storm) awaitHealth() {
	end := time.Now().Add(s.options.limit())
	for !isHealthy(s.t.Context(), s.world.node) {
		if time.Now().After(end) {
			_, _, _, failure := s.model.now()
			s.judge.violate(invariantHealth, "packets agree, but health has not been good for %v; last failure: %q", s.options.limit(), failure)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// unapplied returns a wrong flight if the agent has not applied everything. Connections
// alone may not show it.
func (s *storm) unapplied() []wrongFlight {
	_, applied, sequence, failure := s.model.now()
	if applied == sequence {
		return nil
	}
	return []wrongFlight{{text: fmt.Sprintf("message %d of %d is applied; last failure: %q", applied, sequence, failure)}}
}

// checkSpread makes connections for some flights until all endpoints that may answer have
// answered. It returns the flights for which an endpoint never answered.
func (s *storm) checkSpread(snapshot proxy.Snapshot, all []flight) (wrong []wrongFlight) {
	const mostEndpoints, tries = 12, 20
	checked := 0
	for _, f := range all {
		v := proxy.Route(snapshot, f.packet(s.model.oracle, netip.AddrPortFrom(s.anySource(f), 0)))
		if v.Action != proxy.Forward || v.Affinity.Enabled() || len(v.Endpoints) < 2 || len(v.Endpoints) > mostEndpoints {
			continue
		}
		unseen := map[netip.AddrPort]bool{}
		for _, e := range v.Endpoints {
			unseen[e.Addr] = true
		}
		for n := 0; n < tries*len(v.Endpoints) && len(unseen) > 0; n++ {
			got := s.traffic.try(s.t.Context(), f, s.options.patience())
			if !got.answered() {
				break // The missing endpoints are reported below.
			}
			delete(unseen, got.Own)
		}
		if len(unseen) > 0 {
			wrong = append(wrong, wrongFlight{f, fmt.Sprintf("%s: never answered by %v", f, slices.Collect(maps.Keys(unseen)))})
		}
		if checked++; checked == s.options.spread {
			break
		}
	}
	return wrong
}

// someFlights returns flights to check in a calm, at most so many and absent ones, some of them
// more than once.
func someFlights(snapshot proxy.Snapshot, most int) []flight {
	all := flights(snapshot)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	absent := absentFlights(snapshot)
	rand.Shuffle(len(absent), func(i, j int) { absent[i], absent[j] = absent[j], absent[i] })
	all = append(all, all...)[:min(most, 2*len(all))]
	return append(all, absent[:min(most/5, len(absent))]...)
}

// check makes connections, and returns the wrong ones.
func (s *storm) check(snapshot proxy.Snapshot, all []flight, patience time.Duration) (wrong []wrongFlight) {
	if s.judge.isBroken() {
		testenv.NoError(s.t, s.world.flushConntrack())
	}
	const atOnce = 200
	found := make([]*wrongFlight, len(all))
	err := testenv.Each(len(all), atOnce, func(i int) error {
		found[i] = s.checkOne(snapshot, all[i], patience)
		return nil
	})
	testenv.NoError(s.t, err)
	for _, w := range found {
		if w != nil {
			wrong = append(wrong, *w)
		}
	}
	return wrong
}

func (s *storm) checkOne(snapshot proxy.Snapshot, f flight, patience time.Duration) *wrongFlight {
	if f.from == "" {
		return nil // It is from unapplied and not a connection.
	}
	if v := proxy.Route(snapshot, f.packet(s.model.oracle, netip.AddrPortFrom(s.anySource(f), 0))); v.Action == proxy.Drop {
		patience = min(patience, 250*time.Millisecond) // No answer is expected.
	}
	got := s.traffic.try(s.t.Context(), f, patience)
	p := f.packet(s.model.oracle, got.source)
	v := proxy.Route(snapshot, p)
	if s.model.oracle.Allows(p, v, got.reply()) {
		return nil
	}
	return &wrongFlight{f, fmt.Sprintf("%s: got %s, want %s", f, &got, v.Reasons)}
}

// anySource returns an address that a flight may come from.
func (s *storm) anySource(f flight) netip.Addr {
	if f.source.IsValid() {
		return f.source
	}
	if f.from != cluster.Node {
		return cluster.Nth(f.crowd(), 1)
	}
	return s.model.oracle.Towards(f.to.Addr())
}
