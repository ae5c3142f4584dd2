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

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// storm is one run of a history.
type storm struct {
	t       testing.TB
	options *options
	world   *world
	model   *model
	judge   *judge
	traffic *traffic
	// agent is nil while no agent runs. neighbours are agents with other identities.
	agent      *process
	neighbours []*process
	// done are the steps so far, with notes about each. pending are the ends of faults
	// that last.
	done    []doneStep
	pending []pendingEnd
	// lastFault is when the last fault began or ended.
	lastFault time.Time
	slowest   time.Duration // longest time until packets agreed after a fault
}

type doneStep struct {
	step
	start time.Time
	notes []string
}

// pendingEnd is a function that ends a fault, and the time to call it.
type pendingEnd struct {
	at  time.Time
	end func()
}

func newStorm(t testing.TB, o *options) *storm {
	t.Helper()
	m := newModel(oracleOf(o.isIPVS()))
	s := &storm{t: t, options: o, world: newWorld(t), model: m, judge: newJudge(m, o.limit())}
	s.traffic = newTraffic(s.world)
	testenv.NoError(t, s.nft(resetsTable))
	s.judge.mixing = o.isIPVS() || o.backend == "nftables"
	if o.isIPVS() {
		s.judge.stepwise = true
		testenv.NoError(t, s.prepareIPVS())
	}
	return s
}

// run carries out steps until there are no more, or an invariant is violated.
func (s *storm) run(steps iter.Seq[step]) []violation {
	s.start(1)
	ctx, cancel := context.WithCancel(s.t.Context())
	var beside sync.WaitGroup
	beside.Go(func() { s.connect(ctx) })
	beside.Go(func() { s.watchHealth(ctx) })
	for _, f := range controls() {
		beside.Go(func() { s.watchControl(ctx, f) })
	}
	reported := time.Now()
	for one := range steps {
		s.wait(time.Now().Add(one.After))
		if len(s.judge.violated()) > 0 {
			break
		}
		s.done = append(s.done, doneStep{step: one, start: time.Now()})
		s.do(&one)
		if time.Since(reported) > time.Minute {
			reported = time.Now()
			s.t.Log(s.report())
		}
	}
	for len(s.pending) > 0 {
		s.pending[0].at = time.Now()
		s.wait(time.Now())
	}
	cancel()
	beside.Wait()
	if s.agent != nil {
		s.agent.kill()
	}
	if s.options.isIPVS() && len(s.judge.violated()) == 0 {
		s.checkCleanup()
	}
	return s.judge.violated()
}

// agentOptions returns the options of the storm's own agent.
func (s *storm) agentOptions() *agentOptions {
	return &agentOptions{Backend: s.options.backend, Health: healthAddress, Resync: s.options.resync}
}

// start starts the agent and sends it the whole model. Depending on chance its system calls
// are watched, and its buffers are small.
func (s *storm) start(chance uint64) {
	o := s.agentOptions()
	// Watching is expensive for the userspace backend, which makes system calls for traffic.
	o.Watched = !s.options.without["errors"] && (o.Backend != "userspace" || chance%2 == 1)
	if o.Watched && chance%3 == 0 {
		o.Small = 4096 << (chance % 6)
		s.note("the next agent has buffers of %d bytes", o.Small)
	}
	s.model.addAgent(o.Identity)
	s.agent = startAgent(s.t, s.world.node, o, func(e event) { s.model.recordEvent(o.Identity, e) })
	s.send(s.agent, s.model.all())
}

// sendAll sends a message to all agents.
func (s *storm) sendAll(m *message) {
	if s.agent != nil {
		s.send(s.agent, m)
	}
	for _, p := range s.neighbours {
		s.send(p, m)
	}
}

func (s *storm) send(p *process, m *message) {
	if err := p.send(m); err != nil && !p.ended.Load() {
		s.t.Logf("cannot send a message to an agent: %v", err)
	}
}

// clock is the form of times in the output: that of the logs of agents, without the day.
const clock = "15:04:05.000"

// note adds a note to the current step.
func (s *storm) note(format string, args ...any) {
	if len(s.done) > 0 {
		last := &s.done[len(s.done)-1]
		last.notes = append(last.notes, time.Now().UTC().Format(clock)+" "+fmt.Sprintf(format, args...))
	}
}

// wait waits until a time. Meanwhile it ends the faults whose time has come.
func (s *storm) wait(until time.Time) {
	for {
		slices.SortStableFunc(s.pending, func(a, b pendingEnd) int { return a.at.Compare(b.at) })
		next := until
		if len(s.pending) > 0 && s.pending[0].at.Before(until) {
			next = s.pending[0].at
		}
		time.Sleep(time.Until(next))
		s.checkAgent()
		if len(s.pending) == 0 || time.Now().Before(s.pending[0].at) {
			return
		}
		s.endFirst()
	}
}

func (s *storm) endFirst() {
	e := s.pending[0]
	s.pending = s.pending[1:]
	e.end()
	s.lastFault = time.Now()
}

// checkAgent starts the agent again if it has ended. That is a violation, unless a fault
// explains it.
func (s *storm) checkAgent() {
	if s.agent == nil || !s.agent.ended.Load() {
		return
	}
	if !s.agent.mayEnd {
		s.judge.violate(invariantAlive, "the agent has ended without a fault that explains it")
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
		for len(s.pending) > 0 {
			s.wait(s.pending[0].at)
		}
		s.calm()
	case one.Do == doChange:
		s.sendAll(s.model.set(s.t, &one.change))
		s.lastFault = time.Now()
	case isFault:
		if slices.Contains(f.disrupts, s.options.backend) {
			s.judge.damage(f.opens)
		}
		end, err := f.begin(s, one)
		if err != nil {
			s.note("failed: %v", err)
		}
		if end != nil {
			s.pending = append(s.pending, pendingEnd{time.Now().Add(one.For), end})
		}
		s.lastFault = time.Now()
	default:
		s.t.Fatalf("unknown kind of step: %s", one)
	}
}

// report returns the counts of a storm as one line.
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
