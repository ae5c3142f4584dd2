package proxy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// choosy is a backend that reports problems of its node.
type choosy struct {
	watchful
	found   atomic.Pointer[[]*Problem]
	unknown atomic.Int32 // calls of CheckNode with the zero Snapshot
}

func (b *choosy) Abilities() Abilities { return Abilities{Drifted: b.Drifted, CheckNode: b.CheckNode} }

func (b *choosy) CheckNode(s Snapshot) []*Problem {
	if s.IsZero() {
		b.unknown.Add(1)
	}
	return *b.found.Load()
}

// Problems of the node are logged once when they are found and once when they are fixed, at
// the start and at each resync.
func TestRunnerLogsProblemsOfTheNode(t *testing.T) {
	problem := func(setting, value string) *Problem {
		return &Problem{Kind: "Node", Field: setting, Reason: NodeSetting, Err: errors.New(value + ": it fails, fix it")}
	}
	line := func(setting, value string) string {
		return `"msg"="node setting breaks Services" "error"="` + value + `: it fails, fix it" "kind"="Node" "object"="" "field"="` + setting + `" "reason"="NodeSetting"`
	}
	gone := func(setting, value string) string {
		return `"level"=0 "msg"="node setting breaks Services resolved" "kind"="Node" "object"="" "field"="` + setting + `" "reason"="NodeSetting" "was"="` + value + `: it fails, fix it"`
	}
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		tr.Synced()
		var log []string
		b := &choosy{}
		r := &Runner{Source: tr, Backend: b, ResyncInterval: time.Second, Logger: funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{})}
		b.found.Store(&[]*Problem{problem("a", "0"), problem("b", "0")})
		stop := goRun(t, r)
		for _, step := range []struct {
			what    string
			found   []*Problem
			drifted bool
			want    []string
		}{
			{"at the start", []*Problem{problem("a", "0"), problem("b", "0")}, false, []string{line("a", "0"), line("b", "0")}},
			{"nothing new", []*Problem{problem("a", "0"), problem("b", "0")}, false, nil},
			{"one is fixed", []*Problem{problem("b", "0")}, false, []string{gone("a", "0")}},
			{"one has another value", []*Problem{problem("b", "1")}, false, []string{gone("b", "0"), line("b", "1")}},
			{"a resync that applies", []*Problem{problem("c", "0")}, true, []string{gone("b", "1"), line("c", "0")}},
			{"all is well", nil, false, []string{gone("c", "0")}},
		} {
			b.found.Store(&step.found)
			b.drifted.Store(step.drifted)
			sleepAndWait(3*time.Second + time.Millisecond)
			testenv.Same(t, step.want, log, "%s: log", step.what)
			log = nil
		}
		if n := b.unknown.Load(); n > 0 {
			t.Errorf("CheckNode with the zero snapshot: got %d calls, want none", n)
		}
		stop()
	})
}

// buggy is a backend with bugs in everything but Apply.
type buggy struct {
	watchful
	calls [3]atomic.Int32 // of Drifted, WaitDrift and CheckNode
}

func (b *buggy) Abilities() Abilities {
	return Abilities{Drifted: b.Drifted, WaitDrift: b.WaitDrift, CheckNode: b.CheckNode}
}

func (b *buggy) Drifted(context.Context) bool {
	b.calls[0].Add(1)
	panic("drifted")
}

func (b *buggy) WaitDrift(context.Context) error {
	b.calls[1].Add(1)
	panic("wait")
}

func (b *buggy) CheckNode(Snapshot) []*Problem {
	b.calls[2].Add(1)
	panic("node")
}

// A bug in an ability of a backend neither ends the process nor stops resyncs.
func TestAbilitiesThatPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTracker()
		var mu sync.Mutex // of log: WaitDrift runs beside the rest
		var log []string
		b := &buggy{}
		r := &Runner{Source: tr, Backend: b, ResyncInterval: time.Minute, Logger: funcr.New(func(_, args string) {
			message, _, _ := strings.Cut(args, ` "stack"="goroutine `)
			mu.Lock()
			defer mu.Unlock()
			log = append(log, message)
		}, funcr.Options{})}
		stop := goRun(t, r)
		sleepAndWait(65 * time.Second)
		if full := b.full.Load(); full != 2 {
			t.Errorf("got %d Applies from the zero snapshot, want 2: one resync", full)
		}
		for i, want := range []int32{1, 3, 2} {
			if got := b.calls[i].Load(); got != want {
				t.Errorf("%s: got %d calls, want %d", [...]string{"Drifted", "WaitDrift", "CheckNode"}[i], got, want)
			}
		}
		lost := func(what string) string { return `"error"="dataplane state unknown: panic: ` + what + `"` }
		node, wait := `"msg"="check of node settings failed" `+lost("node"), `"msg"="waiting for drift failed; drift is repaired at the next resync" `+lost("wait")
		want := []string{node, wait, wait, `"msg"="drift check failed; reading the whole dataplane" ` + lost("drifted"), node, wait}
		slices.Sort(want) // WaitDrift and the resync after a minute run side by side
		mu.Lock()
		slices.Sort(log)
		mu.Unlock()
		testenv.Same(t, want, log, "log")
		stop()
	})
}
