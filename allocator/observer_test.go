package allocator_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/allocator"
)

// diary is an observer that writes everything down.
type diary struct{ lines []string }

func (d *diary) Allocated(kind allocator.Kind, static bool, took time.Duration, err error) {
	reason := allocator.Reason("ok")
	errors.As(err, &reason)
	d.lines = append(d.lines, fmt.Sprintf("%v static=%t in time=%t: %s", kind, static, took >= 0, reason))
}

func (d *diary) Synced(err error) { d.lines = append(d.lines, fmt.Sprint("read: ", err)) }

func TestObserver(t *testing.T) {
	d := &diary{}
	store := newCounting()
	p, err := allocator.NewPool(store, allocator.PoolOptions{Ranges: configs(t, "10.96.0.0/24", "30000-30001"), Observer: d})
	if err != nil {
		t.Fatal(err)
	}
	mustReserve(t, p, "web", exactly(t, "10.96.0.1"), allocator.Request{Kind: allocator.Port, Count: 2})
	if _, err := p.DryRun(t.Context(), "db", next(allocator.IPv4)); err != nil {
		t.Error(err)
	}
	for _, q := range []allocator.Request{exactly(t, "10.96.0.1"), exactly(t, "10.97.0.1"), next(allocator.Port)} {
		if claims, err := p.Reserve(t.Context(), "db", q); err == nil {
			t.Errorf("got %v, want an error", claims)
		}
	}
	store.err = errors.New("gone")
	if err := p.Sync(t.Context()); !errors.Is(err, store.err) {
		t.Errorf("got error %v, want %v", err, store.err)
	}
	want := []string{
		"read: <nil>",
		"IPv4 static=true in time=true: ok",
		"port static=false in time=true: ok",
		"port static=false in time=true: ok",
		"IPv4 static=true in time=true: already allocated",
		"IPv4 static=true in time=true: not in the valid range",
		"read: <nil>",
		"port static=false in time=true: range is full",
		"read: gone",
	}
	if diff := cmp.Diff(want, d.lines); diff != "" {
		t.Errorf("what the observer was told (-want +got):\n%s", diff)
	}
}
