package storetest_test

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/storetest"
)

// noting is a test that notes its errors.
type noting struct {
	testing.TB
	said []string
}

func (n *noting) Helper() {}

func (n *noting) Errorf(format string, args ...any) {
	n.said = append(n.said, fmt.Sprintf(format, args...))
}

// What helps tests to find errors finds them, and nothing else.
func TestHelpersFindErrors(t *testing.T) {
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
		{"it tells nothing", func(t testing.TB) { storetest.WantEnd(t, watch(), end) }, "told something 0 times"},
		{"it ends twice", func(t testing.TB) { storetest.WantEnd(t, watch(end, end), end) }, "told something 2 times"},
		{"it ends otherwise", func(t testing.TB) { storetest.WantEnd(t, watch(other), end) }, "error other, want end"},
		{"it tells an event", func(t testing.TB) { storetest.WantEnd(t, watch(nil), end) }, "error <nil>, want end"},
		{"the same claims", func(t testing.TB) { storetest.WantClaims(t, claims(a, b), claims(b, a)) }, ""},
		{"a claim lacks", func(t testing.TB) { storetest.WantClaims(t, claims(a, b), claims(a)) }, "claims (-want +got)"},
		{"another owner", func(t testing.TB) { storetest.WantClaims(t, claims(a), claims(rival)) }, "claims (-want +got)"},
		{"owners of their own", func(t testing.TB) { bind(t, 2, claims(a), claims(b)) }, ""},
		{"two owners", func(t testing.TB) { bind(t, 2, claims(a), claims(rival)) }, "10.96.0.1 has two owners: a and b"},
		{"too few", func(t testing.TB) { bind(t, 2, claims(a)) }, "only 1 owners came that far, want 2"},
		{"one after another", func(t testing.TB) {
			o := bind(t, 1, claims(a))
			o.Released(claims(a))
			o.Bound(claims(rival))
			if got := o.Held()[a.Key]; got != "b" {
				t.Errorf("the key belongs to %q", got)
			}
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := &noting{TB: t}
			c.do(n)
			found := slices.ContainsFunc(n.said, func(s string) bool { return strings.Contains(s, c.want) })
			if c.want == "" && len(n.said) > 0 || c.want != "" && (len(n.said) != 1 || !found) {
				t.Errorf("the errors are %q, want one with %q", n.said, c.want)
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
