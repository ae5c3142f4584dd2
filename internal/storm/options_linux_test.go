package storm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Environment variables, which "make storm" sets.
const (
	// backendVariable names the only backend that is to meet a storm.
	backendVariable = "VIPKIT_STORM_BACKEND"
	// timeVariable says how long a storm lasts for each backend.
	timeVariable = "VIPKIT_STORM_TIME"
	// rateVariable says how many connections there are in a second.
	rateVariable = "VIPKIT_STORM_RATE"
	// withoutVariable names kinds of steps that do not occur, with commas.
	withoutVariable = "VIPKIT_STORM_WITHOUT"
	// folderVariable is the folder where histories that fail are kept.
	folderVariable = "VIPKIT_STORM_FOLDER"
	// replayVariable names a file with a history, which is played instead of a
	// random one, and reduceVariable has it made as short as can be.
	replayVariable = "VIPKIT_STORM_REPLAY"
	reduceVariable = "VIPKIT_STORM_REDUCE"
)

// options say what a storm is like.
type options struct {
	backend string
	lasts   time.Duration
	rate    int
	without map[string]bool
	// resync is the ResyncInterval of agents. After a fault packets must agree
	// within two of it, and slack: what a busy machine may take besides.
	resync, slack time.Duration
}

const (
	defaultTime = 4 * time.Second
	defaultRate = 500
)

func readOptions(t testing.TB, backend string) *options {
	t.Helper()
	o := &options{
		backend: backend, lasts: defaultTime, rate: defaultRate, without: map[string]bool{},
		resync: 500 * time.Millisecond, slack: 6 * time.Second,
	}
	if backend == "iptables-legacy" {
		o.resync = time.Second // Each one runs some programs.
	}
	var errTime, errRate error
	if text := os.Getenv(timeVariable); text != "" {
		o.lasts, errTime = time.ParseDuration(text)
	}
	if text := os.Getenv(rateVariable); text != "" {
		o.rate, errRate = strconv.Atoi(text)
	}
	if errTime != nil || errRate != nil {
		t.Fatalf("%s, %s: %v", timeVariable, rateVariable, fmt.Sprint(errTime, errRate))
	}
	for name := range strings.SplitSeq(os.Getenv(withoutVariable), ",") {
		o.without[name] = true
	}
	return o
}

// limit is how long packets may disagree after a fault.
func (o *options) limit() time.Duration { return 2*o.resync + o.slack }
