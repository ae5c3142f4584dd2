package proxy

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// stepTime is the time of the steps in the table; times in texts are relative to it.
func stepTime() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

func in(d time.Duration) time.Time { return stepTime().Add(d) }

// generation returns an empty snapshot of a generation; the zero one for 0.
func generation(n uint64) Snapshot {
	if n == 0 {
		return Snapshot{}
	}
	s := NewSnapshot(nil)
	s.generation = n
	return s
}

// stateText formats a state without its zero fields.
func stateText(s state) string {
	text := fmt.Sprintf("%d of %d", s.applied.generation, s.want.generation)
	add := func(name string, at time.Time) {
		if !at.IsZero() {
			text += fmt.Sprintf(" %s %v", name, at.Sub(stepTime()))
		}
	}
	add("pending", s.pending)
	add("resync", s.resync)
	add("repair", s.repair)
	add("next", s.nextRepair)
	if s.unverified {
		text += " unverified"
	}
	return fmt.Sprintf("%s repairs %d", text, s.repairs)
}

func actionsText(all []action) string {
	var out []string
	for _, a := range all {
		text := [...]string{"wait", "check", "apply", "node", "verify", "report", "rest", "end"}[a.kind]
		if !a.until.IsZero() {
			text += fmt.Sprint(" ", a.until.Sub(stepTime()))
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// done is an Apply of generation 2 that took a second.
func done(full bool, held uint64, err error) event {
	x := Sync{Full: full, Applied: generation(held), Duration: second, Err: err, Refused: refused(err)}
	return event{kind: eventApplied, sync: x, programmed: err}
}

// repaired is done, of a full Apply that had to change something.
func repaired() event {
	e := done(true, 2, nil)
	e.sync.Operations = 1
	return e
}

// stepTable has single steps of a Runner that retries after a second and resyncs each minute.
func stepTable() []stepRow {
	quiet := state{want: generation(2), applied: generation(2), resync: in(30 * second)}
	due := state{want: generation(2), applied: generation(2), resync: in(0)}
	retries := state{want: generation(2), applied: generation(1), resync: in(30 * second), pending: in(5 * second)}
	lost := state{want: generation(2), pending: in(5 * second), resync: in(-second)}
	unfollowed := state{want: generation(2), applied: generation(2), resync: in(0), unverified: true}
	busy := state{want: generation(2), applied: generation(2), resync: in(3 * time.Hour), nextRepair: in(2 * time.Hour)}
	ports := PortErrors{portName("a"): io.ErrUnexpectedEOF}
	unfollows := done(true, 2, nil)
	unfollows.sync.Err, unfollows.followed = io.ErrNoProgress, io.ErrNoProgress
	return []stepRow{
		{"first snapshot", newState(), event{kind: eventArrived, snapshot: generation(2)}, "0 of 2 pending 0s repairs -1", "apply"},
		{"snapshot", quiet, event{kind: eventArrived, snapshot: generation(3)}, "2 of 3 pending 0s resync 30s repairs 0", "apply"},
		{"snapshot during a backoff", lost, event{kind: eventArrived, snapshot: generation(3)}, "0 of 3 pending 0s resync -1s repairs 0", "apply"},
		{"snapshot when a resync is due", due, event{kind: eventArrived, snapshot: generation(3)}, "2 of 3 pending 0s resync 0s repairs 0", "check"},
		{"source fails", quiet, event{kind: eventFailed, err: io.ErrNoProgress}, "2 of 2 resync 30s repairs 0", "end"},
		{"too early", retries, event{}, "1 of 2 pending 5s resync 30s repairs 0", "wait 5s"},
		{"resync is due", due, event{}, "2 of 2 resync 0s repairs 0", "check"},
		{"a retry without a known dataplane comes before a resync", lost, event{}, "0 of 2 pending 5s resync -1s repairs 0", "wait 5s"},
		{"drift", quiet, event{noticed: true}, "2 of 2 resync 30s repair 50ms repairs 0", "wait 50ms"},
		{"drift and a snapshot", quiet, event{kind: eventArrived, snapshot: generation(3), noticed: true}, "2 of 3 pending 0s resync 30s repair 50ms repairs 0", "apply"},
		{"drift after long repairs", busy, event{noticed: true}, "2 of 2 resync 3h0m0s repair 1h59m0s next 2h0m0s repairs 0", "wait 1h59m0s"},
		{"resync finds drift", due, event{kind: eventChecked, drifted: true}, "0 of 2 resync 0s repairs 0", "apply"},
		{"resync finds no drift", due, event{kind: eventChecked}, "2 of 2 resync 1m0s repairs 0", "node, verify, wait 1m0s"},
		{"resync before flows have followed", unfollowed, event{kind: eventChecked}, "2 of 2 resync 1m0s unverified repairs 0", "node, wait 1m0s"},
		{"resync with flows due", due, event{kind: eventChecked, flowsDue: true}, "2 of 2 resync 1m0s repairs 0", "node, verify, apply"},
		{"resync while a retry waits", retries, event{kind: eventChecked}, "1 of 2 pending 5s resync 1m0s repairs 0", "node, verify, apply"},
		{"first Apply", newState(), repaired(), "2 of 0 resync 1m0s next 10s repairs 0", "verify, rest, wait 1m0s"},
		{"Apply", retries, done(false, 2, nil), "2 of 2 resync 30s repairs 0", "rest, wait 30s"},
		{"Apply fails", retries, done(false, 1, io.ErrUnexpectedEOF), "1 of 2 pending 1s resync 30s repairs 0", "report 1s, rest, wait 1s"},
		{"a port fails", quiet, done(true, 1, ports), "1 of 2 pending 1s resync 1m0s next 10s repairs 0", "verify, report 1s, rest, wait 1s"},
		{"dataplane is lost", quiet, done(false, 0, ErrDataplaneLost), "0 of 2 pending 1s resync 30s repairs 0", "report 1s, rest, wait 1s"},
		{"flows fail", newState(), unfollows, "2 of 0 pending 1s resync 1m0s next 10s unverified repairs 0", "report 1s, rest, wait 1s"},
		{"flows follow", unfollowed, done(false, 2, nil), "2 of 2 resync 0s repairs 0", "verify, rest, wait 0s"},
		{"a repair", quiet, repaired(), "2 of 2 resync 1m0s next 10s repairs 1", "verify, rest, wait 1m0s"},
		{"a second repair", state{repairs: 1}, repaired(), "2 of 0 resync 1m0s next 10s repairs 2", "rest, wait 1m0s"},
		{"a second repair before flows have followed", state{repairs: 1, unverified: true}, repaired(), "2 of 0 resync 1m0s next 10s repairs 2", "rest, wait 1m0s"},
		{"a repair after a resync that changed nothing", state{repairs: 1}, done(true, 2, nil), "2 of 0 resync 1m0s next 10s repairs 0", "verify, rest, wait 1m0s"},
		{"nothing is supported", newState(), done(true, 0, ErrUnsupported), "0 of 0 pending 1s next 10s repairs -1", "end"},
		{"long repairs add up", busy, done(true, 2, nil), "2 of 2 resync 1m0s next 2h0m10s repairs 0", "verify, rest, wait 1m0s"},
	}
}

type stepRow struct {
	name        string
	state       state
	event       event
	next, tasks string
}

func TestStep(t *testing.T) {
	r := &Runner{RetryInterval: second, ResyncInterval: time.Minute}
	for _, tc := range stepTable() {
		next, actions := r.step(tc.state, tc.event, stepTime())
		testenv.Same(t, [2]string{tc.next, tc.tasks}, [2]string{stateText(next), actionsText(actions)}, "%s: state and actions", tc.name)
		again, repeated := r.step(tc.state, tc.event, stepTime())
		if stateText(again) != stateText(next) || actionsText(repeated) != actionsText(actions) {
			t.Errorf("%s: the same step again: got %s, %s, want %s, %s", tc.name, stateText(again), actionsText(repeated), stateText(next), actionsText(actions))
		}
	}
}
