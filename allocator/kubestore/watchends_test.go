package kubestore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// shortContext is a context that bounds watches that should end by themselves.
func shortContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestInvalidEvents checks that an invalid event ends a watch with an error.
func TestInvalidEvents(t *testing.T) {
	t.Parallel()
	cidr := serviceCIDR("10.96.0.0/24")
	for what, e := range map[string]watch.Event{
		"no metadata":             {Type: watch.Added, Object: &runtime.Unknown{}},
		"neither of the two":      {Type: watch.Modified, Object: &networkingv1.IngressClass{}},
		"an error of the server":  {Type: watch.Error, Object: &metav1.Status{Code: 500}},
		"a bookmark without data": {Type: watch.Bookmark, Object: &runtime.Unknown{}},
		"a range":                 {Type: watch.Added, Object: &cidr},
	} {
		a, s := newStore(t)
		a.firstEvent = e
		for got, err := range s.Watch(shortContext(t), 5) {
			if err == nil || errors.Is(err, allocator.ErrCompacted) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: Watch: got %v, error %v, want an error", what, got, err)
			}
		}
		if n := a.openWatches(); n > 0 {
			t.Errorf("%s: open watches: got %d, want none", what, n)
		}
	}
}

// TestRefusedWatches checks that a watch that the API server refuses ends with its error,
// which is ErrCompacted if the version is too old.
func TestRefusedWatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		refusal error
		tooOld  bool
	}{
		{apierrors.NewResourceExpired("too old"), true}, {&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonGone}}, true},
		{apierrors.NewUnauthorized("who is that?"), false}, {errLost, false},
	} {
		a, s := newStore(t)
		a.watchErr = c.refusal
		n := 0
		for _, err := range s.Watch(shortContext(t), 5) {
			if n++; !errors.Is(err, c.refusal) || errors.Is(err, allocator.ErrCompacted) != c.tooOld {
				t.Errorf("%v: got error %v; too old: want %t", c.refusal, err, c.tooOld)
			}
		}
		if n != 1 {
			t.Errorf("%v: got %d events, want an error", c.refusal, n)
		}
	}
}

// TestBookmarks checks that a bookmark is no event, and that the next watch begins from it.
// A watch from version 0 requests no bookmarks. A watch without an event is started again
// from the same version.
func TestBookmarks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from allocator.Version
		mark string
		want []string
	}{
		{5, "77", []string{"5 true", "77 true", "77 true"}}, {0, "77", []string{"0 false", "77 true", "77 true"}},
		{5, "", []string{"5 true", "5 true", "5 true"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, s := newStore(t)
			a.endsWatches = true
			if c.mark != "" {
				a.firstEvent = watch.Event{Type: watch.Bookmark, Object: &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{ResourceVersion: c.mark}}}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			storetest.WantEnd(t, s.Watch(ctx, c.from), context.DeadlineExceeded)
			var got []string
			for _, o := range a.watchOptions[:min(3, len(a.watchOptions))] {
				got = append(got, fmt.Sprint(o.ResourceVersion, " ", o.AllowWatchBookmarks))
			}
			testenv.Same(t, c.want, got, "from %d: watches began", c.from)
		})
	}
}

// TestOldestRangesFirst checks that ranges are sorted by age, and by name if they have one
// age.
func TestOldestRangesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, s := newStore(t)
		var want []string
		for age := range 4 {
			for i := range 4 {
				o := serviceCIDR(fmt.Sprintf("10.%d.%d.0/24", age, i))
				o.Name = fmt.Sprintf("%d-%d", 9-age, i)
				a.put(t, "servicecidrs", &o)
				want = append(want, o.Spec.CIDRs[0]+" draining=false")
			}
			time.Sleep(time.Second)
		}
		got, err := s.Ranges(t.Context())
		if diff := cmp.Diff(want, describeRanges(got)); diff != "" || err != nil {
			t.Errorf("error %v; ranges (-want +got):\n%s", err, diff)
		}
	})
}

// TestWatchIsRestarted ends the watch after each event, as API servers do, and checks that
// no event is lost.
func TestWatchIsRestarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, s := newStore(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n, start := 0, time.Now()
		put := func() {
			a.put(t, "ipaddresses", foreign(storetest.Key(n).String(), "web"))
		}
		put()
		for e, err := range s.Watch(ctx, 0) {
			if err != nil {
				t.Fatalf("after %d events: %v", n, err)
			}
			if e.Claim.Key != storetest.Key(n) {
				t.Fatalf("event %d: got key %v, want %v", n, e.Claim.Key, storetest.Key(n))
			}
			if n++; n == 10 {
				break
			}
			a.disconnect()
			if n%2 == 0 {
				go func() { time.Sleep(3 * time.Second); put() }() // while no watch is open
			} else {
				put()
			}
		}
		if got, want := time.Since(start), 4*3*time.Second; n != 10 || got != want {
			t.Errorf("got %d events in %v, want 10 in %v: after a watch that sent an event the next one starts at once", n, got, want)
		}
	})
}

func TestWatchTooOld(t *testing.T) {
	t.Parallel()
	a, s := newStore(t)
	a.forget()
	storetest.WantEnd(t, s.Watch(t.Context(), 50), allocator.ErrCompacted)
}
