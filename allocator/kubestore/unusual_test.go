package kubestore_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestInvalidVersions has resourceVersions that are not decimal numbers.
func TestInvalidVersions(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", "x", "0x10", "-1", "18446744073709551616"} {
		a, s := newStore(t)
		a.put(t, "ipaddresses", foreign(storetest.Key(1).String(), "web"))
		setVersion := func(o any) {
			if about, err := meta.CommonAccessor(o); err == nil {
				about.SetResourceVersion(version)
			}
		}
		a.mangle = func(o runtime.Object) { setVersion(o) }
		_, ofGet := s.Get(t.Context(), storetest.Key(1))
		_, ofList := s.Load(t.Context())
		_, ofCommit := s.Commit(t.Context(), []allocator.Op{{Claim: allocator.Claim{Key: storetest.Key(2), Owner: "me", Token: 1}}})
		a.mangle = func(o runtime.Object) {
			if list, ok := o.(*networkingv1.IPAddressList); ok {
				setVersion(&list.Items[0])
			}
		}
		_, ofItem := s.Load(t.Context())
		for what, err := range map[string]error{"Get": ofGet, "Load": ofList, "Load of an object": ofItem, "Commit": ofCommit} {
			if err == nil {
				t.Errorf("version %q: %s: got no error, want one", version, what)
			}
		}
	}
}

// TestInvalidNames has IPAddress objects whose names are not addresses.
func TestInvalidNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"web", "30000", "10.96.0.1/32"} {
		a, s := newStore(t)
		a.put(t, "ipaddresses", foreign(name, "web"))
		if state, err := s.Load(t.Context()); err == nil {
			t.Errorf("%s: Load: got %v and no error, want one", name, state.Claims)
		}
		for e, err := range s.Watch(shortContext(t), 0) {
			if err == nil {
				t.Errorf("%s: Watch: got %v and no error, want one", name, e)
			}
		}
	}
}

// TestTimesAreComparable checks that times of another time zone are read as UTC.
func TestTimesAreComparable(t *testing.T) {
	t.Parallel()
	a, s := newStore(t)
	o := foreign(storetest.Key(1).String(), "web")
	o.Annotations = map[string]string{"allocator.vipkit.github.io/since": "2024-02-29T14:00:00+02:00", "allocator.vipkit.github.io/expires": "2024-02-29T15:00:00+02:00"}
	a.put(t, "ipaddresses", o)
	state, err := s.Get(t.Context(), storetest.Key(1))
	if err != nil || len(state.Claims) != 1 {
		t.Fatalf("got %v, error %v, want one claim", state.Claims, err)
	}
	since := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	if c := state.Claims[0]; c.Since != since || c.Expires != since.Add(time.Hour) {
		t.Errorf("got %v to %v, want %v and an hour more", c.Since, c.Expires, since)
	}
}

// TestForeignAnnotations checks that a change keeps the annotations of other programs.
func TestForeignAnnotations(t *testing.T) {
	t.Parallel()
	a, s := newStore(t)
	o := foreign(storetest.Key(1).String(), "web")
	o.Labels[networkingv1.LabelManagedBy] = kubestore.DefaultManagedBy
	o.Annotations = map[string]string{"example.com/note": "mine"}
	a.put(t, "ipaddresses", o)
	state, err := s.Get(t.Context(), storetest.Key(1))
	testenv.NoError(t, err)
	if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: state.Claims[0]}}); err != nil {
		t.Fatal(err)
	}
	got := a.addresses()[o.Name].Annotations
	want := []string{"allocator.vipkit.github.io/since", "allocator.vipkit.github.io/token", "example.com/note"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" || got["example.com/note"] != "mine" {
		t.Errorf("note: got %q, want mine; annotations (-want +got):\n%s", got["example.com/note"], diff)
	}
}

// TestWithoutParent deletes an object of the store whose parentRef was removed.
func TestWithoutParent(t *testing.T) {
	t.Parallel()
	a, s := newStore(t)
	o := foreign(storetest.Key(1).String(), "web")
	o.Labels[networkingv1.LabelManagedBy] = kubestore.DefaultManagedBy
	o.Spec.ParentRef = nil
	a.put(t, "ipaddresses", o)
	state, err := s.Load(t.Context())
	if err != nil || len(state.Claims) != 1 || state.Claims[0].Owner != "" {
		t.Fatalf("got %+v, error %v, want one claim without an owner", state.Claims, err)
	}
	if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: state.Claims[0], Delete: true}}); err != nil || len(a.addresses()) > 0 {
		t.Errorf("Commit: got error %v, objects %v, want none", err, describe(a.addresses()))
	}
}

// TestManagedBy checks that stores change only objects with their own label, even if they
// have created the object themselves.
func TestManagedBy(t *testing.T) {
	t.Parallel()
	a, client := newAPI()
	mine := kubestore.New(client, kubestore.Options{ManagedBy: "me.example.com"})
	c := reserved(t, mine)
	if got := a.addresses()[c.Key.String()].Labels[networkingv1.LabelManagedBy]; got != "me.example.com" {
		t.Errorf("the object is managed by %q, want me.example.com", got)
	}
	bound := c
	bound.Expires = time.Time{}
	for what, s := range map[string]*kubestore.Store{"by default": kubestore.New(client, kubestore.Options{}), "another": kubestore.New(client, kubestore.Options{ManagedBy: "other"})} {
		if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: bound}}); !errors.Is(err, allocator.ErrConflict) {
			t.Errorf("a store with another name (%s): got error %v, want %v", what, err, allocator.ErrConflict)
		}
	}
	// The reply is lost, and the store then reads an object with another label.
	free := allocator.Claim{Key: storetest.Key(2), Owner: "me", Token: 7, Expires: c.Expires}
	a.lose = func(verb string) (bool, bool) { return false, verb == "create" }
	a.before = func(action clienttesting.Action) {
		if action.GetVerb() == "get" {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.objects["ipaddresses"][free.Key.String()].SetLabels(map[string]string{networkingv1.LabelManagedBy: "other"})
		}
	}
	versions, err := mine.Commit(t.Context(), []allocator.Op{{Claim: free}})
	testenv.NoError(t, err)
	free.Version, free.Expires = versions[0], time.Time{}
	if _, err := mine.Commit(t.Context(), []allocator.Op{{Claim: free}}); !errors.Is(err, allocator.ErrConflict) {
		t.Errorf("an object that another program manages now: got error %v, want %v", err, allocator.ErrConflict)
	}
}

// TestNoRequestWithoutNeed checks that reading a port sends no request, nor does a watch
// whose context has ended, and that Load of one page sends one.
func TestNoRequestWithoutNeed(t *testing.T) {
	t.Parallel()
	a, s := newStore(t)
	verbs := map[string]int{}
	a.before = func(action clienttesting.Action) { verbs[action.GetVerb()]++ }
	if _, err := s.Get(t.Context(), allocator.PortKey(30000)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range s.Watch(ended, 5) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: got error %v, want %v", err, context.Canceled)
		}
	}
	if diff := cmp.Diff(map[string]int{"list": 1}, verbs); diff != "" || a.started > 0 {
		t.Errorf("watches: got %d, want none; requests (-want +got):\n%s", a.started, diff)
	}
}
