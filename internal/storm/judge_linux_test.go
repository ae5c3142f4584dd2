package storm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// The invariants that are held.
const (
	// invariantWhole: a connection to a Service that was whole all the time goes
	// as it should.
	invariantWhole = "whole"
	// invariantDenied: a connection that is denied does not get through.
	invariantDenied = "denied"
	// invariantAgreement: in time after the last fault, packets agree with
	// [proxy.Route].
	invariantAgreement = "agreement"
	// invariantHealth: when packets do not agree for longer, health says so; and
	// when they agree again, health says that, too.
	invariantHealth = "health"
	// invariantAlive: an agent does not end by itself.
	invariantAlive = "alive"
)

// violation is an invariant that did not hold.
type violation struct {
	invariant, text string
	at              time.Time
}

// judge holds connections to the invariants. Its methods may be called from any
// goroutine.
type judge struct {
	model *model
	limit time.Duration // how long packets may disagree

	mu sync.Mutex
	// broken are the times when a fault may make connections to Services fail, and
	// open those when it may let denied ones through.
	broken, open intervals
	// wrong says since when all connections of a flight have gone otherwise than
	// they should.
	wrong      map[flight]time.Time
	controls   []trial
	health     []look
	violations []violation
	counts     map[string]int
}

// trial is a connection straight to an endpoint: whether that works says what others
// are worth.
type trial struct {
	begin, end time.Time
	ok         bool
}

// look is an answer of /healthz.
type look struct {
	at time.Time
	ok bool
}

// intervals are times, of which the last may go on.
type intervals struct {
	all  []interval
	goes bool
}

type interval struct{ begin, end time.Time }

// begin begins an interval, unless one goes on.
func (i *intervals) begin() {
	if !i.goes {
		i.all, i.goes = append(i.all, interval{begin: time.Now()}), true
	}
}

// finish ends the interval that goes on, if there is one.
func (i *intervals) finish() {
	if i.goes {
		i.all[len(i.all)-1].end, i.goes = time.Now(), false
	}
}

// touch reports whether a time has a part in common with any of the last ones.
func (i *intervals) touch(begin, end time.Time) bool {
	for n := len(i.all) - 1; n >= max(0, len(i.all)-20); n-- {
		goes := i.goes && n == len(i.all)-1
		if i.all[n].begin.Before(end) && (goes || i.all[n].end.After(begin)) {
			return true
		}
	}
	return false
}

func newJudge(m *model, limit time.Duration) *judge {
	return &judge{model: m, limit: limit, wrong: map[flight]time.Time{}, counts: map[string]int{}}
}

func (j *judge) violate(invariant, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.violateLocked(invariant, format, args...)
}

func (j *judge) violateLocked(invariant, format string, args ...any) {
	const most = 8 // of one cause, most likely
	if j.counts["violations"]++; len(j.violations) >= most {
		return
	}
	j.violations = append(j.violations, violation{invariant, fmt.Sprintf(format, args...), time.Now()})
}

// violated gives what is violated so far.
func (j *judge) violated() []violation {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]violation(nil), j.violations...)
}

// damage says that from now on connections may fail, and, where opens says so, that denied
// ones may get through.
func (j *judge) damage(opens bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken.begin()
	if opens {
		j.open.begin()
	}
	clear(j.wrong) // What is wrong is so since now.
}

// mended says that packets agree.
func (j *judge) mended() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken.finish()
	j.open.finish()
	clear(j.wrong)
}

// isBroken reports whether connections may fail just now.
func (j *judge) isBroken() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.broken.goes
}

// count counts something for the report.
func (j *judge) count(what string, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts[what] += n
}

// verdicts are what may become of a flight, as the dataplane may be in one of several
// states.
type verdicts struct {
	all                    []proxy.Verdict
	forward, refused, pass int  // so many say that
	others                 bool // an endpoint is not the client
}

func verdictsOf(f flight, got *fate, states []proxy.Snapshot) (v verdicts) {
	for _, s := range states {
		one := proxy.Route(s, f.packet(got.source))
		v.all = append(v.all, one)
		for _, e := range one.Endpoints {
			v.others = v.others || e.Addr.Addr() != got.source.Addr()
		}
		switch one.Action {
		case proxy.Forward:
			v.forward++
		case proxy.Drop, proxy.Reject:
			v.refused++
		case proxy.Pass:
			v.pass++
		}
	}
	return v
}

// agree reports whether all say that a connection is served, or that it is refused, or
// that it is left alone.
func (v *verdicts) agree() bool {
	return slices.Contains([]int{v.forward, v.refused, v.pass}, len(v.all))
}

func (v *verdicts) allow(f flight, got *fate) bool {
	for i := range v.all {
		if isAllowed(f, &v.all[i], got) {
			return true
		}
	}
	return false
}

// sample takes a connection that was made while the dataplane held what a message says or
// any later one.
func (j *judge) sample(f flight, got *fate, begin time.Time, applied int) {
	end := time.Now()
	states := j.model.since(applied)
	if errors.Is(got.err, errNoTry) || len(states) == 0 {
		j.count("not judged", 1)
		return
	}
	v := verdictsOf(f, got, states)
	if f.source.IsValid() && v.others {
		return // The answer of another endpoint would not pass the node.
	}
	allowed := v.allow(f, got)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts["connections"]++
	if allowed {
		j.counts["as they should"]++
		delete(j.wrong, f)
		return
	}
	why := fmt.Sprintf("%s, begun %s ago (messages from %d on, %d): %s; should: %s", f, end.Sub(begin).Round(time.Millisecond), applied, len(states), got, v.all[len(v.all)-1].Reasons)
	switch {
	case got.served(f) && v.refused == len(v.all) && !j.open.touch(begin, end):
		j.violateLocked(invariantDenied, "%s", why)
	case !v.agree(): // It is about to change.
	case j.broken.touch(begin, end):
		j.counts["wrong by a fault"]++
		j.goesWrong(f, end, why)
	case errors.Is(got.err, os.ErrDeadlineExceeded) && !j.steady(begin, end):
		j.counts["wrong as is the control"]++
	default:
		j.violateLocked(invariantWhole, "%s", why)
	}
}

// goesWrong takes note that a flight goes wrong, which health must know of if it lasts.
func (j *judge) goesWrong(f flight, end time.Time, why string) {
	since, known := j.wrong[f]
	if !known {
		j.wrong[f] = end
		return
	}
	if late := since.Add(j.limit); end.After(late) && j.healthySince(late, end) {
		j.violateLocked(invariantHealth, "for %v, and health was good all the time: %s", end.Sub(since).Round(time.Millisecond), why)
	}
}

// remember is how long trials and looks are kept.
const remember = time.Minute

func (j *judge) control(t trial) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.controls = append(j.controls, t)
	for len(j.controls) > 0 && time.Since(j.controls[0].end) > remember {
		j.controls = j.controls[1:]
	}
}

func (j *judge) looked(l look) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.health = append(j.health, l)
	for len(j.health) > 0 && time.Since(j.health[0].at) > remember {
		j.health = j.health[1:]
	}
}

// steady reports whether connections straight to endpoints worked, and soon, all the
// time. Only then can silence be held against anybody.
func (j *judge) steady(begin, end time.Time) bool {
	const soon = 900 * time.Millisecond // before the kernel sends something again
	seen := 0
	for _, c := range j.controls {
		if c.begin.After(end) || c.end.Before(begin) {
			continue
		}
		if seen++; !c.ok || c.end.Sub(c.begin) > soon {
			return false
		}
	}
	return seen > 1
}

// healthySince reports whether health was good all the time, as far as was looked.
func (j *judge) healthySince(begin, end time.Time) bool {
	seen := 0
	for _, l := range j.health {
		if l.at.Before(begin) || l.at.After(end) {
			continue
		}
		if seen++; !l.ok {
			return false
		}
	}
	return seen > 1
}
