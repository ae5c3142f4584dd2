package proxy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
)

// needy is a backend that may need Flows.
type needy struct{ needs bool }

func (needy) Apply(context.Context, Snapshot, Snapshot) error { return nil }
func (needy) Cleanup(context.Context) error                   { return nil }
func (n needy) NeedsFlows() bool                              { return n.needs }

// idle is a FlowCleaner that finds nothing.
type idle struct{}

func (idle) Follow(context.Context, Snapshot, bool) error { return nil }
func (idle) Due() bool                                    { return false }

// TestForgottenFlows: a Runner that lacks Flows which its Backend needs says so once.
func TestForgottenFlows(t *testing.T) {
	for _, c := range []struct {
		name    string
		backend Backend
		flows   FlowCleaner
		lines   int
	}{
		{"forgotten", needy{true}, nil, 1},
		{"set", needy{true}, idle{}, 0},
		{"not needed", needy{false}, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lines := 0
				tr := newTestTracker()
				tr.Synced()
				r := &Runner{Source: tr, Backend: c.backend, Flows: c.flows, Logger: funcr.New(func(_, line string) {
					if strings.Contains(line, "Flows of the Runner is not set") {
						lines++
					}
				}, funcr.Options{})}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := r.Run(ctx); err != nil {
					t.Error(err)
				}
				if lines != c.lines {
					t.Errorf("got %d lines, want %d", lines, c.lines)
				}
			})
		})
	}
}

// predecessor is a backend that finds a frontend in each full Apply, and a FlowCleaner that gets it.
type predecessor struct {
	needy
	idle

	found *ServicePort
	got   []*ServicePort
}

func (f *predecessor) Found() []*ServicePort     { return []*ServicePort{f.found} }
func (f *predecessor) Find(found []*ServicePort) { f.got = append(f.got, found...) }

// TestFoundFrontends: what a Backend finds in an Apply from the zero Snapshot, and only then, gets to Flows.
func TestFoundFrontends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &predecessor{found: &ServicePort{}}
		tr := newTestTracker()
		tr.Synced()
		r := &Runner{Source: tr, Backend: f, Flows: f}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(time.Second, func() { tr.UpdateService(apiService("web", "10.96.0.1")) })
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
		if len(f.got) != 1 || f.got[0] != f.found {
			t.Errorf("got %v, want what the Backend has found, once", f.got)
		}
	})
}

// refusedOnce is a predecessor whose first full Apply fails after it has removed what it found.
type refusedOnce struct {
	predecessor

	applies int
}

func (f *refusedOnce) Apply(context.Context, Snapshot, Snapshot) error {
	if f.applies++; f.applies == 1 {
		return errors.New("another family is locked")
	}
	return nil
}

func (f *refusedOnce) Found() []*ServicePort {
	if f.applies == 1 {
		return []*ServicePort{f.found}
	}
	return nil
}

// TestFoundBeforeAnError: a full Apply that fails may have removed what it found, so that the next one does not
// find it.
func TestFoundBeforeAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &refusedOnce{predecessor: predecessor{found: &ServicePort{}}}
		tr := newTestTracker()
		tr.Synced()
		r := &Runner{Source: tr, Backend: f, Flows: f}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
		if f.applies < 2 || len(f.got) != 1 || f.got[0] != f.found {
			t.Errorf("after %d applies: got %v, want what the first one has found", f.applies, f.got)
		}
	})
}
