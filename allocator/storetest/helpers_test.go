package storetest_test

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// noting is a test that records its errors.
type noting struct {
	testing.TB
	errors []string
}

func (n *noting) Helper() {}

func (n *noting) Errorf(format string, args ...any) {
	n.errors = append(n.errors, fmt.Sprintf(format, args...))
}

// TestHelpersFindErrors checks that each helper reports its error, and no other.
func TestHelpersFindErrors(t *testing.T) {
	t.Parallel()
	end, other := errors.New("end"), errors.New("other")
	watch := func(errs ...error) iter.Seq2[allocator.Event, error] {
		return func(yield func(allocator.Event, error) bool) {
			for _, err := range errs {
				if !yield(allocator.Event{}, err) {
					return
				}
			}
		}
	}
	a, b := allocator.Claim{Key: storetest.Key(1), Owner: "a"}, allocator.Claim{Key: storetest.Key(2), Owner: "b"}
	rival := allocator.Claim{Key: a.Key, Owner: "b"}
	claims := func(all ...allocator.Claim) []allocator.Claim { return all }
	for _, c := range []struct {
		name string
		do   func(t testing.TB)
		want string // part of the only error; empty for none
	}{
		{"the watch ends", func(t testing.TB) { storetest.WantEnd(t, watch(end), end) }, ""},
		{"it yields nothing", func(t testing.TB) { storetest.WantEnd(t, watch(), end) }, "got 0 items"},
		{"it ends twice", func(t testing.TB) { storetest.WantEnd(t, watch(end, end), end) }, "got 2 items"},
		{"it ends with another error", func(t testing.TB) { storetest.WantEnd(t, watch(other), end) }, "error other, want end"},
		{"it yields an event", func(t testing.TB) { storetest.WantEnd(t, watch(nil), end) }, "error <nil>, want end"},
		{"the same claims", func(t testing.TB) { storetest.WantClaims(t, claims(a, b), claims(b, a)) }, ""},
		{"a claim lacks", func(t testing.TB) { storetest.WantClaims(t, claims(a, b), claims(a)) }, "claims (-want +got)"},
		{"another owner", func(t testing.TB) { storetest.WantClaims(t, claims(a), claims(rival)) }, "claims (-want +got)"},
		{"owners of their own", func(t testing.TB) { bind(t, 2, claims(a), claims(b)) }, ""},
		{"two owners", func(t testing.TB) { bind(t, 2, claims(a), claims(rival)) }, "10.96.0.1 has two owners: a and b"},
		{"too few", func(t testing.TB) { bind(t, 2, claims(a)) }, "got 1 calls of Bound, want at least 2"},
		{"one after another", func(t testing.TB) {
			o := bind(t, 1, claims(a))
			o.Released(claims(a))
			o.Bound(claims(rival))
			testenv.Same(t, "b", o.Held()[a.Key], "owner of the key")
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := &noting{TB: t}
			c.do(n)
			found := slices.ContainsFunc(n.errors, func(s string) bool { return strings.Contains(s, c.want) })
			if c.want == "" && len(n.errors) > 0 || c.want != "" && (len(n.errors) != 1 || !found) {
				t.Errorf("errors: got %q, want one with %q", n.errors, c.want)
			}
		})
	}
}

func bind(t testing.TB, least int, all ...[]allocator.Claim) *storetest.Owners {
	t.Helper()
	o := storetest.NewOwners(t)
	for _, claims := range all {
		o.Bound(claims)
	}
	o.WantBindings(least)
	return o
}
