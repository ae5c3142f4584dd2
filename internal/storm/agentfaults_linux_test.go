package storm

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kill kills the agent. The one that starts later finds what it left.
func (s *storm) kill(one *step) (func(), error) {
	if s.agent == nil {
		return nil, nil
	}
	s.agent.kill()
	s.agent = nil
	// What the next one is like, this one's chance says.
	return func() { s.start(one.Chance) }, nil
}

// stop has the agent stand still.
func (s *storm) stop(*step) (func(), error) {
	p := s.agent
	if p == nil {
		return nil, nil
	}
	p.Signal(syscall.SIGSTOP)
	return func() {
		if p == s.agent {
			p.Signal(syscall.SIGCONT)
		}
	}, nil
}

// limitDescriptors lets the agent have but a few more files than it has open.
func (s *storm) limitDescriptors(one *step) (func(), error) {
	p := s.agent
	if p == nil {
		return nil, nil
	}
	p.starved = true
	files, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(p.ID()), "fd"))
	if err != nil {
		return nil, err
	}
	var own unix.Rlimit // which agents have, too
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return nil, err
	}
	limit := unix.Rlimit{Cur: uint64(len(files)) + one.Chance%4, Max: own.Max}
	if err := unix.Prlimit(p.ID(), unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		return nil, err
	}
	return func() {
		if p == s.agent {
			_ = unix.Prlimit(p.ID(), unix.RLIMIT_NOFILE, &own, nil) // It may have ended.
		}
	}, nil
}

// twin starts an agent beside the agent, as in an update of which the end overlaps the
// beginning.
func (s *storm) twin(*step) (func(), error) {
	o := s.agentOptions()
	o.Health = "127.0.0.1:10257"
	p := startAgent(s.t, s.world.node, o, func(event) {})
	s.send(p, s.model.all())
	return p.kill, nil
}

// neighbour starts an agent with another identity, which does the same until it removes
// all that it has made. It is not alone in having to be right then.
func (s *storm) neighbour(*step) (func(), error) {
	if len(s.neighbours) > 0 {
		return nil, nil
	}
	o := s.agentOptions()
	o.Identity, o.Mark, o.Health = "other", 0x8000, "127.0.0.1:10258"
	s.model.joins(o.Identity)
	p := startAgent(s.t, s.world.node, o, func(e event) { s.model.heard(o.Identity, e) })
	s.neighbours = append(s.neighbours, p)
	s.send(p, s.model.all())
	return func() {
		s.send(p, &message{Cleanup: true})
		s.neighbours = nil
		s.awaitEnd(p, o.Identity, time.Now().Add(patience))
	}, nil
}

// awaitEnd waits until a neighbour has ended, while other steps go on.
func (s *storm) awaitEnd(p *process, identity string, until time.Time) {
	switch {
	case p.ended.Load():
		if status := p.Wait(); status != 0 {
			s.judge.violate(invariantAlive, "an agent of another identity ends with status %d", status)
		}
	case time.Now().After(until):
		s.judge.violate(invariantAlive, "an agent of another identity has not removed its rules for %v", patience)
	default:
		again := func() { s.awaitEnd(p, identity, until) }
		s.going = append(s.going, ending{time.Now().Add(50 * time.Millisecond), again})
		return
	}
	p.kill()
	s.model.leaves(identity)
}
