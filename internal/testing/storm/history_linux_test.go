package storm

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/objects"
)

// step is one step of a history. Its meaning does not depend on earlier steps, so that a
// history with any steps removed is still a valid history.
type step struct {
	// After is the time to wait before the step.
	After time.Duration `json:"after,omitempty"`
	Do    string        `json:"do"`
	// For is the duration of a fault; other steps are carried out meanwhile.
	For time.Duration `json:"for,omitempty"`
	// Chance seeds the random choices that are made when the step is carried out.
	Chance uint64 `json:"chance,omitempty"`
	// Run are programs to run on the node. A step that chose them at random records
	// here what it ran.
	Run []run `json:"run,omitempty"`
	change
}

// run is a program with its arguments and its standard input.
type run struct {
	Command []string `json:"command"`
	Input   string   `json:"input,omitempty"`
}

// The kinds of steps, beside the faults.
const (
	doChange = "change"
	// doCalm waits until all faults have ended, and then until packets agree.
	doCalm = "calm"
	// large is not a kind of step. As a name in withoutVariable it leaves out Services
	// of more than a hundred endpoints.
	large = "large"
)

func (s *step) String() string {
	text, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// randomServices is the number of Services that are added and removed at random. Their
// numbers start at 1.
const randomServices = 9

// generator generates random histories.
type generator struct {
	*rand.Rand
	options *options
	specs   map[int]*cluster.Sample // current Services
}

// history returns an endless sequence of steps: episodes of some steps, with a calm after
// each.
func history(r *rand.Rand, o *options) iter.Seq[step] {
	return func(yield func(step) bool) {
		a := &generator{Rand: r, options: o, specs: map[int]*cluster.Sample{}}
		first := step{Do: doChange, change: change{Services: map[int]*cluster.Sample{}, Node: new(0)}}
		for n := range 6 {
			a.specs[1+n] = a.sample()
		}
		maps.Copy(first.Services, a.specs)
		// Service 0 exists all the time.
		first.Services[0] = &cluster.Sample{
			Type: v1.ServiceTypeLoadBalancer, ExternalIP: true, Ranges: sourceRanges()[0], Endpoints: crowds(0, 2, 1),
		}
		if !yield(first) || !yield(step{Do: doCalm}) {
			return
		}
		for {
			for _, s := range a.episode() {
				if !yield(s) {
					return
				}
			}
			if !yield(step{Do: doCalm}) {
				return
			}
		}
	}
}

// episode returns some steps. While a fault lasts, there are changes.
func (a *generator) episode() (steps []step) {
	for range 1 + a.IntN(objects.OneOf(a.Rand, 2, 2, 5)) {
		one := a.step()
		one.After = a.pause(400 * time.Millisecond)
		steps = append(steps, one)
		if one.For == 0 {
			continue
		}
		for range 1 + a.IntN(3) {
			meanwhile := step{Do: doChange, change: a.change()}
			meanwhile.After = a.pause(one.For / 2)
			steps = append(steps, meanwhile)
		}
	}
	return steps
}

func (a *generator) pause(longest time.Duration) time.Duration {
	if a.IntN(3) == 0 {
		return 0
	}
	return time.Duration(a.Int64N(1 + int64(longest))).Round(time.Millisecond)
}

func (a *generator) step() step {
	for {
		if a.IntN(5) < 2 {
			return step{Do: doChange, change: a.change()}
		}
		// Tampering has many variants, so about half of the faults are of this kind.
		name := objects.OneOf(a.Rand, append(slices.Sorted(maps.Keys(faults())), append(slices.Repeat([]string{"tamper"}, 10), "flush", "kill", "errors")...)...)
		if f := faults()[name]; !a.options.without[name] && f.fits(a.options) {
			return f.random(a.Rand, name)
		}
	}
}

func (a *generator) change() change {
	c := change{Services: map[int]*cluster.Sample{}}
	if a.IntN(6) == 0 {
		c.Node = new(a.IntN(4))
	}
	for range 1 + a.IntN(3) {
		n := 1 + a.IntN(randomServices)
		if known := a.specs[n]; known != nil && a.IntN(2) == 0 {
			c.Services[n] = a.edited(*known)
		} else {
			c.Services[n] = a.sample()
		}
	}
	if known := slices.Sorted(maps.Keys(a.specs)); a.IntN(4) == 0 {
		c.Services[objects.OneOf(a.Rand, known...)] = nil
	}
	maps.Copy(a.specs, c.Services)
	maps.DeleteFunc(a.specs, func(_ int, s *cluster.Sample) bool { return s == nil })
	return c
}

// edited returns a copy of a Service with one field changed.
func (a *generator) edited(s cluster.Sample) *cluster.Sample {
	other := a.sample()
	switch a.IntN(9) {
	case 0:
		s.Type = other.Type
	case 1:
		s.Internal = other.Internal
	case 2:
		s.External = other.External
	case 3:
		s.Ranges = other.Ranges
	case 4:
		s.Affinity = other.Affinity
	case 5:
		s.ExternalIP = !s.ExternalIP
	case 6:
		s.Endpoints = slices.Clone(s.Endpoints)
		for i := range s.Endpoints {
			s.Endpoints[i].First = a.IntN(4)
		}
	default:
		at := objects.OneOf(a.Rand, cluster.Local, cluster.Remote)
		isAt := func(e cluster.Endpoint) bool { return e.At == at }
		isElsewhere := func(e cluster.Endpoint) bool { return e.At != at }
		s.Endpoints = append(slices.DeleteFunc(slices.Clone(s.Endpoints), isAt), slices.DeleteFunc(other.Endpoints, isElsewhere)...)
	}
	return a.affordable(&s)
}

func (a *generator) sample() *cluster.Sample {
	s := cluster.RandomSample(a.Rand, 0, sourceRanges()...)
	if s.Affinity > 0 {
		s.Affinity = 1 + int32(a.IntN(100))
	}
	local, remote := a.size(), objects.OneOf(a.Rand, 0, a.size())
	if a.IntN(30) == 0 && !a.options.without[large] {
		local = a.around(objects.OneOf(a.Rand, 256, 512, 1024, 1100))
	}
	s.Endpoints = crowds(a.IntN(4), local, remote)
	return a.affordable(&s)
}

// crowds returns endpoints on the node and on another one.
func crowds(first, local, remote int) (all []cluster.Endpoint) {
	for at, n := range map[cluster.Name]int{cluster.Local: local, cluster.Remote: remote} {
		if n > 0 {
			all = append(all, cluster.Endpoint{At: at, First: first, Count: n})
		}
	}
	slices.SortFunc(all, func(a, b cluster.Endpoint) int { return strings.Compare(string(a.At), string(b.At)) })
	return all
}

// mostServers is the largest number of endpoints on a node for the backend ipvs: a Service has
// up to 16 virtual servers, each with all endpoints, and the processor is emulated.
const mostServers = 150

// affordable reduces the endpoints of a Service to what the kernel can serve at the rate of
// the storm. For each rule of session affinity that the first packet of a connection passes,
// module xt_recent searches a list of all endpoints of such Services: 18 ms at 1,100.
func (a *generator) affordable(s *cluster.Sample) *cluster.Sample {
	const most = 16
	limit := cluster.MaxCrowd
	if a.options.isIPVS() {
		limit = mostServers
	}
	if s.Affinity > 0 && strings.HasPrefix(a.options.backend, "iptables") {
		limit = most
	}
	for i, e := range s.Endpoints {
		s.Endpoints[i].Count = min(e.Count, limit)
	}
	return s
}

// size returns a random number of endpoints, most often small and close to a power of two.
func (a *generator) size() int {
	if a.IntN(3) == 0 {
		return a.IntN(4)
	}
	return a.around(1 << a.IntN(7))
}

func (a *generator) around(n int) int { return max(0, n-1+a.IntN(3)) }

// readHistory reads steps in the format of historyText. Lines that begin with # are
// comments.
func readHistory(r io.Reader) (steps []step, err error) {
	known := append(slices.Collect(maps.Keys(faults())), doChange, doCalm)
	slices.Sort(known)
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := lines.Bytes()
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		var s step
		if err := json.Unmarshal(line, &s); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if !slices.Contains(known, s.Do) {
			return nil, fmt.Errorf("line %d: unknown kind of step %q, want one of %q", n, s.Do, known)
		}
		steps = append(steps, s)
	}
	return steps, lines.Err()
}
