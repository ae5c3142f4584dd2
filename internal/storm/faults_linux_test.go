package storm

import (
	"math/rand/v2"
	"slices"
	"time"
)

// fault is a kind of step that makes something go wrong.
type fault struct {
	// only are the backends that it means anything to; nil: all.
	only []string
	// hurts are the backends of which connections to Services may fail by it, until
	// packets agree again; opens says that denied ones may get through, too.
	hurts []string
	opens bool
	// longest is how long it lasts at most; 0: it is done at once.
	longest time.Duration
	// begin carries it out; end, if there is one, ends what it began.
	begin func(*storm, *step) (end func(), err error)
}

func (f *fault) fits(o *options) bool { return f.only == nil || slices.Contains(f.only, o.backend) }

// random gives a step that makes this go wrong.
func (f *fault) random(r *rand.Rand, name string) step {
	s := step{Do: name, Chance: r.Uint64() >> 11}
	if f.longest > 0 {
		s.For = time.Duration(r.Int64N(int64(f.longest))).Round(time.Millisecond)
	}
	return s
}

// faults gives all kinds by name.
func faults() map[string]*fault {
	userspace := []string{"userspace"}
	return map[string]*fault{
		// All rules are removed. While they come back, denied clients stay denied.
		"flush": {hurts: backendNames(), begin: (*storm).flush},
		// Another program changes an object of the agent.
		"tamper": {hurts: backendNames(), opens: true, begin: (*storm).tamperSomething},
		// Another program adds an object to the agent's that no packet meets.
		"add": {begin: (*storm).addSomething},
		// The agent is killed, and starts again after a while.
		"kill": {hurts: userspace, longest: time.Second, begin: (*storm).kill},
		// The agent does not run for a while.
		"stop": {hurts: userspace, longest: 2 * time.Second, begin: (*storm).stop},
		// A second agent with the same identity knows what there was when it began,
		// and is killed after a while.
		"twin": {hurts: backendNames(), opens: true, longest: 1500 * time.Millisecond, begin: (*storm).twin},
		// An agent with another identity does the same for a while.
		"neighbour": {only: []string{"nftables", "iptables-legacy", "iptables-nft"}, longest: 2 * time.Second, begin: (*storm).neighbour},
		// Others commit to tables of their own, all the time.
		"foreign": {longest: 2 * time.Second, begin: (*storm).foreign},
		// Others hold the lock of iptables.
		"lock": {only: []string{"iptables-legacy"}, longest: 4 * time.Second, begin: (*storm).lock},
		// System calls of the agent and of its programs fail.
		"errors": {hurts: userspace, longest: 2 * time.Second, begin: (*storm).failCalls},
		// The agent gets no more file descriptors.
		"descriptors": {hurts: userspace, longest: 2 * time.Second, begin: (*storm).limitDescriptors},
	}
}
