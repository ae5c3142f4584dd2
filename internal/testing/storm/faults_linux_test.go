package storm

import (
	"math/rand/v2"
	"slices"
	"time"
)

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
