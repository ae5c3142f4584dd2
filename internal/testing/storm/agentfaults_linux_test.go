package storm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kill kills the agent. At the end of the fault another agent starts, with the rules of the
// killed one still in place.
func (s *storm) kill(one *step) (func(), error) {
	if s.agent == nil {
		return nil, nil
	}
	s.agent.kill()
	s.agent = nil
	// The chance of this step decides about the options of the next agent.
	return func() { s.start(one.Chance) }, nil
}

// stop stops the agent with SIGSTOP, and continues it later.
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

// limitDescriptors limits the open files of the agent to few more than it has open.
func (s *storm) limitDescriptors(one *step) (func(), error) {
	p := s.agent
	if p == nil {
		return nil, nil
	}
	p.mayEnd = true
	files, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(p.ID()), "fd"))
	if err != nil {
		return nil, err
	}
	var own unix.Rlimit // which agents inherit
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

// secondAgent starts another agent with the same identity, as in an update where the old
// agent still runs when the new one starts.
func (s *storm) secondAgent(*step) (func(), error) {
	o := s.agentOptions()
	o.Health = "127.0.0.1:10257"
	p := startAgent(s.t, s.world.node, o, func(event) {})
	s.send(p, s.model.all())
	return p.kill, nil
}

// neighbour starts an agent with another identity, and stops it later with a cleanup.
// Meanwhile both agents must have applied a message before it counts as applied.
func (s *storm) neighbour(*step) (func(), error) {
	if len(s.neighbours) > 0 {
		return nil, nil
	}
	o := s.agentOptions()
	o.Identity, o.Mark, o.Health = "other", 0x8000, "127.0.0.1:10258"
	s.model.addAgent(o.Identity)
	s.model.share()
	p := startAgent(s.t, s.world.node, o, func(e event) { s.model.recordEvent(o.Identity, e) })
	s.neighbours = append(s.neighbours, p)
	s.send(p, s.model.all())
	return func() {
		s.send(p, &message{Cleanup: true})
		s.note("a neighbour removes its tables")
		s.neighbours = nil
		s.awaitEnd(p, o.Identity, time.Now().Add(patience))
	}, nil
}

// awaitEnd checks whether a neighbour has ended, and schedules another check if not.
func (s *storm) awaitEnd(p *process, identity string, until time.Time) {
	switch {
	case p.ended.Load():
		if status := p.Wait(); status != 0 {
			s.judge.violate(invariantAlive, "exit status of an agent with another identity: got %d, want 0", status)
		}
	case time.Now().After(until):
		s.judge.violate(invariantAlive, "an agent with another identity has not removed its rules and ended within %v", patience)
	default:
		again := func() { s.awaitEnd(p, identity, until) }
		s.pending = append(s.pending, pendingEnd{time.Now().Add(50 * time.Millisecond), again})
		return
	}
	p.kill()
	s.note("a neighbour has ended")
	s.model.removeAgent(identity)
	s.haveListed()
	s.model.unshare()
}

// haveListed has an agent of nftables list its tables, by a commit that changes nothing: only then
// it removes clients with affinity to endpoints that another agent chose.
func (s *storm) haveListed() {
	if s.options.backend != "nftables" {
		return
	}
	for _, table := range []string{"ip vipkit", "ip vipkit_2", "ip6 vipkit", "ip6 vipkit_2"} {
		element := table + " cluster-ips { " + map[bool]string{true: "2001:db8::1", false: "192.0.2.1"}[strings.HasPrefix(table, "ip6")] + " }\n"
		_ = s.nft("add element " + element + "delete element " + element) // Most often there is no second table.
	}
}

// fault is a kind of step that makes something go wrong.
type fault struct {
	// only are the backends that it applies to; nil: all.
	only []string
	// disrupts are the backends for which connections to Services may fail, until packets
	// agree again; opens says that denied connections may then succeed, too.
	disrupts []string
	opens    bool
	// longest is the longest duration; 0: the fault is over at once.
	longest time.Duration
	// begin begins the fault; end, unless it is nil, ends it.
	begin func(*storm, *step) (end func(), err error)
}

func (f *fault) fits(o *options) bool { return f.only == nil || slices.Contains(f.only, o.backend) }

// random returns a step with this fault.
func (f *fault) random(r *rand.Rand, name string) step {
	s := step{Do: name, Chance: r.Uint64() >> 11}
	if f.longest > 0 {
		s.For = time.Duration(r.Int64N(int64(f.longest))).Round(time.Millisecond)
	}
	return s
}

// faults returns all kinds of faults by name.
func faults() map[string]*fault {
	userspace := []string{"userspace"}
	return map[string]*fault{
		// All rules are removed, or all virtual servers of IPVS. While they are restored, denied
		// clients stay denied.
		"flush": {disrupts: backendNames(), begin: (*storm).flush},
		// Another program changes an object of the agent.
		"tamper": {disrupts: backendNames(), opens: true, begin: (*storm).tamperSomething},
		// Another program adds an object that no packet reaches.
		"add": {only: []string{"nftables", "iptables-legacy", "iptables-nft", "userspace"}, begin: (*storm).addSomething},
		// The agent is killed, and starts again after a while.
		"kill": {disrupts: userspace, longest: time.Second, begin: (*storm).kill},
		// The agent does not run for a while.
		"stop": {disrupts: userspace, longest: 2 * time.Second, begin: (*storm).stop},
		// A second agent with the same identity gets the state at its start and no later
		// changes, and is killed after a while.
		"twin": {disrupts: backendNames(), opens: true, longest: 1500 * time.Millisecond, begin: (*storm).secondAgent},
		// An agent with another identity runs for a while.
		"neighbour": {only: []string{"nftables", "iptables-legacy", "iptables-nft"}, longest: 2 * time.Second, begin: (*storm).neighbour},
		// Another program commits to its own tables all the time.
		"foreign": {longest: 2 * time.Second, begin: (*storm).foreign},
		// Another program has a virtual server at an address that a Service may get.
		"squat": {only: ipvsNames(), disrupts: ipvsNames(), longest: 2 * time.Second, begin: (*storm).squat},
		// Another program holds the lock of iptables.
		"lock": {only: []string{"iptables-legacy", "ipvs-legacy"}, longest: 4 * time.Second, begin: (*storm).lock},
		// System calls of the agent and of its programs fail.
		"errors": {disrupts: userspace, longest: 2 * time.Second, begin: (*storm).failCalls},
		// The agent can open no or few more files.
		"descriptors": {disrupts: userspace, longest: 2 * time.Second, begin: (*storm).limitDescriptors},
	}
}
