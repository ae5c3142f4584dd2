package storm

import (
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Environment variables, which "make storm" sets.
const (
	// backendVariable names the only backends to test; by default all are tested.
	backendVariable = "VIPKIT_STORM_BACKEND"
	// timeVariable is the duration of the storm of each backend.
	timeVariable = "VIPKIT_STORM_TIME"
	// rateVariable is the number of connections per second.
	rateVariable = "VIPKIT_STORM_RATE"
	// withoutVariable lists the kinds of steps that are left out, separated by commas.
	withoutVariable = "VIPKIT_STORM_WITHOUT"
	// folderVariable is the folder where histories that fail are kept. If it is toOutput, they
	// are printed: a virtual machine has no folder that stays.
	folderVariable = "VIPKIT_STORM_FOLDER"
	toOutput       = "-"
	// replayVariable names a file with a history, which is played instead of a
	// random one. If reduceVariable is set, steps are removed from it as long as it
	// still fails.
	replayVariable = "VIPKIT_STORM_REPLAY"
	reduceVariable = "VIPKIT_STORM_REDUCE"
)

// options are the settings of a storm.
type options struct {
	backend  string
	duration time.Duration
	rate     int
	without  map[string]bool
	// resync is the ResyncInterval of agents. After a fault packets must agree within
	// 2*resync + slack, where slack allows for a busy machine.
	resync, slack time.Duration
	// checked and spread are how many flights a calm checks, at most: whether they agree, and
	// whether all endpoints answer.
	checked, spread int
}

const (
	defaultTime = 4 * time.Second
	defaultRate = 500
	// ipvsRate is for the emulated processor of internal/testing/vm.
	ipvsRate = 100
)

func readOptions(t testing.TB, backend string) *options {
	t.Helper()
	o := &options{
		backend: backend, duration: defaultTime, rate: defaultRate, without: map[string]bool{},
		resync: 500 * time.Millisecond, slack: 6 * time.Second, checked: 200, spread: 6,
	}
	if backend == "iptables-legacy" {
		o.resync = time.Second // Each resync runs some programs.
	}
	if o.isIPVS() {
		// A resync lists everything, which takes a second and more on an emulated processor.
		o.resync, o.slack, o.rate, o.checked, o.spread = 3*time.Second, 9*time.Second, ipvsRate, 100, 3
	}
	if backend == "ipvs-legacy" {
		o.resync, o.slack = 5*time.Second, 15*time.Second // It runs programs, too.
	}
	if text := os.Getenv(timeVariable); text != "" {
		var err error
		if o.duration, err = time.ParseDuration(text); err != nil || o.duration <= 0 {
			t.Fatalf("%s: got %q, want a duration such as 30s or 2m", timeVariable, text)
		}
	}
	if folder := os.Getenv(folderVariable); folder != "" && folder != toOutput {
		// A history that fails must not be lost in the end.
		if info, err := os.Stat(folder); err != nil || !info.IsDir() {
			t.Fatalf("%s: got %q, want a folder or %q", folderVariable, folder, toOutput)
		}
	}
	o.rate = testenv.Count(t, rateVariable, o.rate)
	known := append(slices.Sorted(maps.Keys(faults())), large)
	for _, name := range testenv.Names(t, withoutVariable, known) {
		o.without[name] = true
	}
	return o
}

// ipvsNames returns the names of the backend ipvs with each flavour of its rules.
func ipvsNames() []string { return []string{"ipvs", "ipvs-legacy"} }

// isIPVS reports whether the backend is ipvs.
func (o *options) isIPVS() bool { return slices.Contains(ipvsNames(), o.backend) }

// flavour returns the flavour of iptables that the backend uses, "" if it uses none.
func (o *options) flavour() string {
	switch o.backend {
	case "iptables-nft", "ipvs":
		return "nft"
	case "iptables-legacy", "ipvs-legacy":
		return "legacy"
	}
	return ""
}

// limit is how long packets may disagree after a fault.
func (o *options) limit() time.Duration { return 2*o.resync + o.slack }
