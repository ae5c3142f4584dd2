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
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/internal/storetest"
)

// soon is a context that ends what should have ended by itself.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// What a watch tells that makes no sense ends it.
func TestOddEvents(t *testing.T) {
	cidr, address := serviceCIDR("10.96.0.0/24"), foreign(storetest.Key(1).String(), "web")
	for what, e := range map[string]watch.Event{
		"no metadata":             {Type: watch.Added, Object: &runtime.Unknown{}},
		"neither of the two":      {Type: watch.Modified, Object: &networkingv1.IngressClass{}},
		"an error of the server":  {Type: watch.Error, Object: &metav1.Status{Code: 500}},
		"a bookmark without data": {Type: watch.Bookmark, Object: &runtime.Unknown{}},
	} {
		a, s := newStore(t)
		a.greeting = e
		for got, err := range s.Watch(soon(t), 5) {
			if err == nil || errors.Is(err, allocator.ErrCompacted) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: Watch gives %v, error %v, want an error", what, got, err)
			}
		}
		wantRangesEnd(t, s, what)
		if n := a.listening(); n > 0 {
			t.Errorf("%s: %d watches go on, want none", what, n)
		}
	}
	a, s := newStore(t)
	a.greeting = watch.Event{Type: watch.Added, Object: &cidr}
	for got, err := range s.Watch(soon(t), 5) {
		if err == nil {
			t.Errorf("a range: Watch gives %v and no error", got)
		}
	}
	a.greeting.Object = address
	wantRangesEnd(t, s, "an address")
}

// wantRangesEnd wants ranges to be told once, and then an error.
func wantRangesEnd(t *testing.T, s *kubestore.Store, what string) {
	t.Helper()
	var errs []error
	for _, err := range s.WatchRanges(soon(t)) {
		errs = append(errs, err)
	}
	if len(errs) != 2 || errs[0] != nil || errs[1] == nil || errors.Is(errs[1], allocator.ErrCompacted) || errors.Is(errs[1], context.DeadlineExceeded) {
		t.Errorf("%s: WatchRanges gives errors %v, want none and then one", what, errs)
	}
}

// A watch that is refused is over; whether what it was asked for is too old, the error
// says.
func TestRefusedWatches(t *testing.T) {
	for _, c := range []struct {
		refusal error
		tooOld  bool
	}{
		{apierrors.NewResourceExpired("too old"), true}, {&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonGone}}, true},
		{apierrors.NewUnauthorized("who is that?"), false}, {errLost, false},
	} {
		a, s := newStore(t)
		a.refused = c.refusal
		n := 0
		for _, err := range s.Watch(soon(t), 5) {
			if n++; !errors.Is(err, c.refusal) || errors.Is(err, allocator.ErrCompacted) != c.tooOld {
				t.Errorf("%v: got error %v; too old: want %t", c.refusal, err, c.tooOld)
			}
		}
		if n != 1 {
			t.Errorf("%v: got %d events, want an error", c.refusal, n)
		}
	}
	a, s := newStore(t)
	a.refused = errLost
	wantRangesEnd(t, s, "a watch of ranges")
}

// A bookmark is where the next watch begins, and no event. From the beginning on there
// are none, and what has told nothing is begun anew from where it was.
func TestBookmarks(t *testing.T) {
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
			a.deaf = true
			if c.mark != "" {
				a.greeting = watch.Event{Type: watch.Bookmark, Object: &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{ResourceVersion: c.mark}}}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			storetest.WantEnd(t, s.Watch(ctx, c.from), context.DeadlineExceeded)
			var got []string
			for _, o := range a.asked[:min(3, len(a.asked))] {
				got = append(got, fmt.Sprint(o.ResourceVersion, " ", o.AllowWatchBookmarks))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("from %d: watches began (-want +got):\n%s", c.from, diff)
			}
		})
	}
}

// A range that is deleted is told to be gone, by the watch that tells of it.
func TestDeletedRange(t *testing.T) {
	for _, goesOn := range []bool{true, false} {
		// With a clock of its own both ranges are of one age.
		synctest.Test(t, func(t *testing.T) { deletesRange(t, goesOn) })
	}
}

func deletesRange(t *testing.T, goesOn bool) {
	t.Helper()
	a, s := newStore(t)
	first, second := serviceCIDR("10.96.0.0/24"), serviceCIDR("10.97.0.0/24")
	second.Name = "more"
	a.put(t, "servicecidrs", &first)
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	var got []string
	var last error
	for r, err := range s.WatchRanges(ctx) {
		if last = err; err != nil {
			continue
		}
		got = append(got, fmt.Sprint(describeRanges(r.Configs)))
		switch len(got) {
		case 1:
			a.put(t, "servicecidrs", &second)
		case 2:
			a.drop(t, "servicecidrs", "test")
		case 3:
			cancel()
		}
		if len(got) == 3 && !goesOn {
			break
		}
	}
	want := []string{
		"[10.96.0.0/24 draining=false]", "[10.97.0.0/24 draining=false 10.96.0.0/24 draining=false]", "[10.97.0.0/24 draining=false]",
	}
	if diff := cmp.Diff(want, got); diff != "" || goesOn && !errors.Is(last, context.Canceled) {
		t.Errorf("the last error is %v; ranges (-want +got):\n%s", last, diff)
	}
	if n := a.listening(); n > 0 {
		t.Errorf("%d watches go on, want none", n)
	}
}

// Ranges come the oldest first, and by name where they are of one age.
func TestOldestRangesFirst(t *testing.T) {
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

// drop deletes an object, of which watches tell.
func (a *api) drop(t testing.TB, resource, name string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.remove(networkingv1.Resource(resource), name, nil); err != nil {
		t.Fatal(err)
	}
}
