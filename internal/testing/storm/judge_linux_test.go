package storm

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/proxy"
)

// The invariants that a storm checks.
const (
	// invariantWhole: a connection that no change and no fault concerns has the outcome
	// of [proxy.Route].
	invariantWhole = "whole"
	// invariantDenied: a connection that [proxy.Route] denies reaches no endpoint.
	invariantDenied = "denied"
	// invariantAgreement: within the limit after the last fault, packets agree with
	// [proxy.Route].
	invariantAgreement = "agreement"
	// invariantHealth: /healthz reports that the agent is unhealthy when packets do not
	// agree for longer than the limit, and that it is healthy when they agree again.
	invariantHealth = "health"
	// invariantAlive: an agent does not end without a reason.
	invariantAlive = "alive"
	// invariantForeign: objects of other programs stay as they are.
	invariantForeign = "foreign"
	// invariantCleanup: Cleanup removes everything of the agents.
	invariantCleanup = "cleanup"
)

// mostFailedInChange is the maximum number of connections that may fail while the endpoints of
// their Service change, counted as failedInChange, in a dataplane that mixes states. Storms of
// 100,000 connections had one.
const (
	mostFailedInChange = 3
	failedInChange     = "failed during a change"
)

// violation is a violation of an invariant.
type violation struct {
	invariant, text string
	at              time.Time
}

// judge checks connections against the invariants. Its methods may be called from any
// goroutine.
type judge struct {
	model *model
	limit time.Duration // longest time that packets may disagree
	// mixing says that during a change, a connection to an endpoint of one state may be
	// masqueraded as in another. With nf_tables, a packet that the kernel evaluates during a
	// commit passes the rules from before it, and finds the elements from after it, or none: so a
	// few connections to a Service that changes may fail.
	mixing bool
	// stepwise says that a connection may fail while a Service gets or loses session affinity.
	// IPVS has no transactions: the kernel's virtual server has no scheduler while that changes.
	stepwise bool

	mu sync.Mutex
	// broken are the intervals in which a fault may make connections to Services fail,
	// and open those in which denied connections may succeed.
	broken, open intervals
	// wrong has the time since which all connections of a flight had a wrong outcome.
	wrong      map[flight]time.Time
	controls   []trial
	health     []healthSample
	violations []violation
	counts     map[string]int
}

// trial is a connection directly to an endpoint. If it fails, a failed connection to a
// Service proves nothing.
type trial struct {
	begin, end time.Time
	ok         bool
}

// healthSample is a response of /healthz.
type healthSample struct {
	at time.Time
	ok bool
}

// intervals are intervals of time. If isOpen is set, the last has not ended.
type intervals struct {
	all    []interval
	isOpen bool
}

type interval struct{ begin, end time.Time }

// begin begins an interval, unless the last is open.
func (i *intervals) begin() {
	if !i.isOpen {
		i.all, i.isOpen = append(i.all, interval{begin: time.Now()}), true
	}
}

// finish ends the last interval, if it is open.
func (i *intervals) finish() {
	if i.isOpen {
		i.all[len(i.all)-1].end, i.isOpen = time.Now(), false
	}
}

// overlaps reports whether an interval overlaps with any of the last 20.
func (i *intervals) overlaps(begin, end time.Time) bool {
	for n := len(i.all) - 1; n >= max(0, len(i.all)-20); n-- {
		isOpen := i.isOpen && n == len(i.all)-1
		if i.all[n].begin.Before(end) && (isOpen || i.all[n].end.After(begin)) {
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
	const most = 8 // More probably have the same cause.
	if j.counts["violations"]++; len(j.violations) >= most {
		return
	}
	j.violations = append(j.violations, violation{invariant, fmt.Sprintf(format, args...), time.Now()})
}

// violated returns the violations so far.
func (j *judge) violated() []violation {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]violation(nil), j.violations...)
}

// damage records that from now on connections may fail and, if opens is set, that denied
// ones may succeed.
func (j *judge) damage(opens bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken.begin()
	if opens {
		j.open.begin()
	}
	clear(j.wrong) // The limit begins anew.
}

// repaired records that packets agree again.
func (j *judge) repaired() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken.finish()
	j.open.finish()
	clear(j.wrong)
}

// isBroken reports whether connections may fail now.
func (j *judge) isBroken() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.broken.isOpen
}

// count adds to a count of the report.
func (j *judge) count(what string, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts[what] += n
}

// verdicts are the verdicts about a flight in each of the states that the dataplane may be
// in.
type verdicts struct {
	oracle                 *cluster.Oracle
	packet                 proxy.Packet
	got                    lab.Reply
	all                    []proxy.Verdict
	forward, refused, pass int  // number of each kind
	otherEndpoint          bool // an endpoint is not the client
}

func (j *judge) verdictsOf(f flight, got *outcome, states []proxy.Snapshot) verdicts {
	v := verdicts{oracle: j.model.oracle, packet: f.packet(j.model.oracle, got.source), got: got.reply()}
	for _, s := range states {
		one := proxy.Route(s, v.packet)
		v.all = append(v.all, one)
		for _, e := range one.Endpoints {
			v.otherEndpoint = v.otherEndpoint || e.Addr.Addr() != got.source.Addr()
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

// allSame reports whether all verdicts are to forward, or all to refuse, or all to pass.
func (v *verdicts) allSame() bool {
	return slices.Contains([]int{v.forward, v.refused, v.pass}, len(v.all))
}

// affinityChanges reports whether only some of the states have session affinity.
func (v *verdicts) affinityChanges() bool {
	return slices.ContainsFunc(v.all, func(one proxy.Verdict) bool { return one.Affinity.Enabled() != v.all[0].Affinity.Enabled() })
}

// allowMixed reports whether one state has the endpoint that answered, and one, perhaps another,
// the client that it sees.
func (v *verdicts) allowMixed() bool {
	reached, client := false, false
	for i := range v.all {
		if v.all[i].Action != proxy.Forward {
			continue
		}
		for _, want := range v.oracle.Replies(v.packet, v.all[i]) {
			reached = reached || want.Own == v.got.Own
			client = client || want.Client.Addr() == v.got.Client.Addr()
		}
	}
	return reached && client
}

// endpointsChange reports whether not all states have the same endpoints.
func (v *verdicts) endpointsChange() bool {
	return slices.ContainsFunc(v.all, func(one proxy.Verdict) bool { return !slices.Equal(one.Endpoints, v.all[0].Endpoints) })
}

func (v *verdicts) allow() bool {
	return slices.ContainsFunc(v.all, func(one proxy.Verdict) bool { return v.oracle.Allows(v.packet, one, v.got) })
}

// allows reports whether one of the states allows an outcome, or the change between them does.
func (j *judge) allows(f flight, got *outcome, v *verdicts, applied int) bool {
	if !got.answered() {
		return v.allow() || j.stepwise && v.affinityChanges()
	}
	return v.allow() || j.mixing && (v.allowMixed() || v.all[0].Affinity.Enabled() && (j.otherAgentChose(f, got, applied) || choseElsewhere(f, got, j.model.since(applied))))
}

// otherAgentChose reports whether a client may have affinity to the endpoint that answered because an agent
// with another identity chose it.
func (j *judge) otherAgentChose(f flight, got *outcome, applied int) bool {
	v := j.verdictsOf(f, got, j.model.sinceShared(applied))
	return v.allowMixed()
}

// sample checks a connection. The dataplane had the state of message applied or of a later
// one when it was made.
func (j *judge) sample(f flight, got *outcome, begin time.Time, applied int) {
	end := time.Now()
	states := j.model.since(applied)
	if got.notTried != nil || len(states) == 0 {
		j.count("not judged", 1)
		return
	}
	v := j.verdictsOf(f, got, states)
	if f.source.IsValid() && v.otherEndpoint {
		return // see soleEndpoint
	}
	allowed := j.allows(f, got, &v, applied)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts["connections"]++
	if allowed {
		j.counts["correct connections"]++
		delete(j.wrong, f)
		return
	}
	reason := fmt.Sprintf("%s, made %s ago (messages from %d on, %d states): got %s, want %s", f, end.Sub(begin).Round(time.Millisecond), applied, len(states), got, v.all[len(v.all)-1].Reasons)
	switch {
	case got.served(f) && v.refused == len(v.all) && !j.open.overlaps(begin, end):
		j.violateLocked(invariantDenied, "%s", reason)
	case !v.allSame(): // The verdict depends on which state the dataplane is in.
	case j.broken.overlaps(begin, end):
		j.counts["wrong during a fault"]++
		j.recordWrong(f, end, reason)
	case got.Outcome == lab.Silence && !j.controlsWorked(begin, end):
		j.counts["wrong while controls failed"]++
	case !got.answered() && j.mayFail(&v):
		j.counts[failedInChange]++
	default:
		j.violateLocked(invariantWhole, "%s%s", reason, got.whoRefused())
	}
}

// mayFail reports whether one more connection may fail because its Service changes.
func (j *judge) mayFail(v *verdicts) bool {
	return j.mixing && v.endpointsChange() && j.counts[failedInChange] < mostFailedInChange
}

// recordWrong records a wrong outcome of a flight. If that lasts longer than the limit,
// health must not be good.
func (j *judge) recordWrong(f flight, end time.Time, reason string) {
	since, known := j.wrong[f]
	if !known {
		j.wrong[f] = end
		return
	}
	if late := since.Add(j.limit); end.After(late) && j.healthySince(late, end) {
		j.violateLocked(invariantHealth, "wrong for %v, and health was good all the time: %s", end.Sub(since).Round(time.Millisecond), reason)
	}
}

// storedTime is how long trials and samples of health are kept.
const storedTime = time.Minute

func (j *judge) control(t trial) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.controls = append(j.controls, t)
	for len(j.controls) > 0 && time.Since(j.controls[0].end) > storedTime {
		j.controls = j.controls[1:]
	}
}

func (j *judge) addHealth(l healthSample) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.health = append(j.health, l)
	for len(j.health) > 0 && time.Since(j.health[0].at) > storedTime {
		j.health = j.health[1:]
	}
}

// controlsWorked reports whether all connections directly to endpoints worked without a
// retransmission. Otherwise a timeout is not a violation.
func (j *judge) controlsWorked(begin, end time.Time) bool {
	const soon = 900 * time.Millisecond // before the first retransmission by the kernel
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

// healthySince reports whether health was good in all samples of an interval.
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
