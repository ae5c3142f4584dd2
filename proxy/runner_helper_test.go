package proxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// call is one Apply: its time since the start, the generations from which (0: the zero
// Snapshot) and to which, and the ports that differ.
type call struct {
	At       time.Duration
	Old, New uint64
	Ports    string
}

// fakeBackend records calls of Apply and returns the errors of apply.
type fakeBackend struct {
	NoAbilities
	start  time.Time
	mu     sync.Mutex
	calls  []call
	apply  func(n int, old, new Snapshot) error // n counts from 1
	counts uint64
}

func (b *fakeBackend) Apply(_ context.Context, old, new Snapshot) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ports []string
	for c := range new.Changes(old) {
		if c.New != nil {
			ports = append(ports, c.New.Name.Name)
		} else {
			ports = append(ports, "-"+c.Old.Name.Name)
		}
	}
	b.calls = append(b.calls, call{time.Since(b.start), old.Generation(), new.Generation(), strings.Join(ports, " ")})
	b.counts += uint64(len(ports))
	if b.apply == nil {
		return nil
	}
	return b.apply(len(b.calls), old, new)
}

func (b *fakeBackend) Cleanup(context.Context) error { return nil }

func (b *fakeBackend) Abilities() Abilities {
	return Abilities{Operations: func() uint64 { return b.counts }}
}

// behave sets what Apply does from now on.
func (b *fakeBackend) behave(apply func(int, Snapshot, Snapshot) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.apply = apply
}

// taken returns the calls since the last call of taken.
func (b *fakeBackend) taken() []call {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.calls
	b.calls = nil
	return out
}

// fails returns an apply function that fails the first n times.
func fails(n int, err error) func(int, Snapshot, Snapshot) error {
	return func(i int, _, _ Snapshot) error {
		if i <= n {
			return err
		}
		return nil
	}
}

// running is a Runner that runs within a bubble of synctest.
type running struct {
	tracker *ServiceChangeTracker
	backend *fakeBackend
	done    chan error
	stop    context.CancelFunc
	syncs   []Sync
}

func start(t *testing.T, r *Runner, apply func(int, Snapshot, Snapshot) error) *running {
	t.Helper()
	x := &running{tracker: newTestTracker(), backend: &fakeBackend{start: time.Now(), apply: apply}, done: make(chan error, 1)}
	if r.Source == nil {
		r.Source = x.tracker
	}
	r.Backend = x.backend
	r.Observers = append(r.Observers, Observer{Synced: func(s Sync) { x.syncs = append(x.syncs, s) }})
	ctx, cancel := context.WithCancel(t.Context())
	x.stop = cancel
	x.service("a")
	go func() { x.done <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); synctest.Wait() })
	synctest.Wait()
	return x
}

func (x *running) service(name string) {
	x.tracker.UpdateService(apiService(name, fmt.Sprintf("10.96.0.%d", name[0])))
}

func sleepAndWait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (x *running) want(t *testing.T, why string, calls ...call) {
	t.Helper()
	testenv.Same(t, calls, x.backend.taken(), "%s: calls of Apply", why)
}

func (x *running) wantEnd(t *testing.T, want error) {
	t.Helper()
	select {
	case err := <-x.done:
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("Run: got error %v, want %v", err, want)
		}
	default:
		t.Errorf("Run still runs, want it to end with error %v", want)
	}
}

// goRun runs a Runner. The function that it returns ends Run, and reports its error.
func goRun(t *testing.T, r *Runner) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
