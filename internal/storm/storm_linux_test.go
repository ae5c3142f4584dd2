package storm

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// storm is one run of a history.
type storm struct {
	t       testing.TB
	options *options
	world   *world
	model   *model
	judge   *judge
	traffic *traffic
	// agent is nil while there is none; neighbours have other identities.
	agent      *process
	neighbours []*process
	// done are the steps so far, with what was found out when they were carried out,
	// and going what was begun by them and is to end.
	done  []doneStep
	going []ending
	// lastFault is when the last fault began or ended.
	lastFault time.Time
	slowest   time.Duration // that packets took to agree
}

type doneStep struct {
	step
	notes []string
}

// ending is what ends a fault.
type ending struct {
	at  time.Time
	end func()
}

func newStorm(t testing.TB, o *options) *storm {
	t.Helper()
	m := newModel()
	s := &storm{t: t, options: o, world: newWorld(t), model: m, judge: newJudge(m, o.limit())}
	s.traffic = newTraffic(t, s.world)
	return s
}

// run carries out steps until there are no more, or something is violated.
func (s *storm) run(steps iter.Seq[step]) []violation {
	s.start(1)
	ctx, cancel := context.WithCancel(s.t.Context())
	var beside sync.WaitGroup
	beside.Go(func() { s.connect(ctx) })
	beside.Go(func() { s.watchHealth(ctx) })
	for c := range clientsOfControls() {
		beside.Go(func() { s.watchControl(ctx, c) })
	}
	told := time.Now()
	for one := range steps {
		s.wait(time.Now().Add(one.After))
		if len(s.judge.violated()) > 0 {
			break
		}
		s.done = append(s.done, doneStep{step: one})
		s.do(&one)
		if time.Since(told) > time.Minute {
			told = time.Now()
			s.t.Log(s.report())
		}
	}
	for len(s.going) > 0 {
		s.going[0].at = time.Now()
		s.wait(time.Now())
	}
	cancel()
	beside.Wait()
	if s.agent != nil {
		s.agent.kill()
	}
	return s.judge.violated()
}

// agentOptions are those of an agent in its usual place.
func (s *storm) agentOptions() *agentOptions {
	return &agentOptions{Backend: s.options.backend, Health: healthAddress, Resync: s.options.resync}
}

// start starts the agent, which hears of all there is. By chance its system calls are
// watched, and buffers are small.
func (s *storm) start(chance uint64) {
	o := s.agentOptions()
	// Where the agent carries the traffic itself, that costs much.
	o.Watched = !s.options.without["errors"] && (o.Backend != "userspace" || chance%2 == 1)
	if o.Watched && chance%3 == 0 {
		o.Small = 4096 << (chance % 6)
		s.note("the next agent has buffers of %d bytes", o.Small)
	}
	s.model.joins(o.Identity)
	s.agent = startAgent(s.t, s.world.node, o, func(e event) { s.model.heard(o.Identity, e) })
	s.send(s.agent, s.model.all())
}

// tell tells all agents something.
func (s *storm) tell(m *message) {
	if s.agent != nil {
		s.send(s.agent, m)
	}
	for _, p := range s.neighbours {
		s.send(p, m)
	}
}

func (s *storm) send(p *process, m *message) {
	if err := p.send(m); err != nil && !p.ended.Load() {
		s.t.Logf("an agent does not listen: %v", err)
	}
}

// note takes note of what a step found out.
func (s *storm) note(format string, args ...any) {
	if len(s.done) > 0 {
		last := &s.done[len(s.done)-1]
		last.notes = append(last.notes, fmt.Sprintf(format, args...))
	}
}

// wait waits until a time, and ends faults meanwhile.
func (s *storm) wait(until time.Time) {
	for {
		slices.SortStableFunc(s.going, func(a, b ending) int { return a.at.Compare(b.at) })
		next := until
		if len(s.going) > 0 && s.going[0].at.Before(until) {
			next = s.going[0].at
		}
		time.Sleep(time.Until(next))
		s.checkAgent()
		if len(s.going) == 0 || time.Now().Before(s.going[0].at) {
			return
		}
		s.endFirst()
	}
}

func (s *storm) endFirst() {
	e := s.going[0]
	s.going = s.going[1:]
	e.end()
	s.lastFault = time.Now()
}

// checkAgent starts the agent again if it has ended, which it may only when it lacked
// something.
func (s *storm) checkAgent() {
	if s.agent == nil || !s.agent.ended.Load() {
		return
	}
	if !s.agent.starved {
		s.judge.violate(invariantAlive, "the agent has ended by itself")
	}
	s.agent.kill()
	s.start(0)
	s.lastFault = time.Now()
}

// do carries out a step.
func (s *storm) do(one *step) {
	s.judge.count("step "+one.Do, 1)
	switch f, isFault := faults()[one.Do]; {
	case one.Do == doCalm:
		for len(s.going) > 0 {
			s.wait(s.going[0].at)
		}
		s.calm()
	case one.Do == doChange:
		s.tell(s.model.set(s.t, &one.change))
		s.lastFault = time.Now()
	case isFault:
		if slices.Contains(f.hurts, s.options.backend) {
			s.judge.damage(f.opens)
		}
		end, err := f.begin(s, one)
		if err != nil {
			s.note("failed: %v", err)
		}
		if end != nil {
			s.going = append(s.going, ending{time.Now().Add(one.For), end})
		}
		s.lastFault = time.Now()
	default:
		s.t.Fatalf("nobody knows how to %s", one)
	}
}

// report gives the figures of a storm in one line.
func (s *storm) report() string {
	s.judge.mu.Lock()
	defer s.judge.mu.Unlock()
	parts := make([]string, 0, len(s.judge.counts))
	for what, n := range s.judge.counts {
		parts = append(parts, fmt.Sprintf("%s: %d", what, n))
	}
	slices.Sort(parts)
	return fmt.Sprintf("%d steps; packets took %v at most to agree; %s", len(s.done), s.slowest.Round(time.Millisecond), strings.Join(parts, ", "))
}
