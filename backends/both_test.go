package backends_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// slots returns operations on slots: "+a" adds a, "-a" removes it, "~a" replaces it.
func slots(text string) (ops []fakeOp) {
	kinds := map[byte]backends.OpKind{'+': backends.Add, '-': backends.Remove, '~': backends.Replace}
	for word := range strings.FieldsSeq(text) {
		ops = append(ops, fakeOp{Kind: kinds[word[0]], Key: fakeKey{kind: slotKind, name: word[1:]}, Value: "of " + word[1:]})
	}
	return ops
}

var errRefused = errors.New("refused")

// CommitBoth makes a change of two transactions as a whole or not at all, also if the context
// ends in between; if that is not possible, the error wraps ErrDataplaneLost.
func TestCommitBoth(t *testing.T) {
	lost := errors.Join(errRefused, proxy.ErrDataplaneLost)
	for name, c := range map[string]struct {
		first   string
		answers []error // of the commits, in order
		want    string
		isLost  bool
	}{
		"both succeed":                     {"+a", []error{nil, nil}, "+a +i", false},
		"the first is refused":             {"+a", []error{errRefused}, "+a", false},
		"the second is refused":            {"+a +b -c", []error{nil, errRefused, nil}, "+a +b -c +i +c -b -a", false},
		"a replacement cannot be reverted": {"+a ~b", []error{nil, errRefused}, "+a ~b +i", true},
		"reverting fails":                  {"+a", []error{nil, errRefused, errRefused}, "+a +i -a", true},
		"the outcome is unknown":           {"+a", []error{nil, lost}, "+a +i", true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var got []fakeOp
			calls := 0
			err := backends.CommitBoth(ctx, func(ctx context.Context, ops []fakeOp) error {
				got = append(got, ops...)
				if calls++; calls > len(c.answers) || calls != 2 && ctx.Err() != nil {
					t.Fatalf("got commit %d of %v, with error %v of its context", calls, ops, ctx.Err())
				}
				if calls == 2 {
					cancel()
				}
				return c.answers[calls-1]
			}, slots(c.first), slots("+i"))
			if diff := cmp.Diff(slots(c.want), got, cmp.AllowUnexported(fakeKey{})); diff != "" {
				t.Errorf("committed (-want +got):\n%s", diff)
			}
			hasFailed := errors.Join(c.answers...) != nil
			if errors.Is(err, errRefused) != hasFailed || (err != nil) != hasFailed || errors.Is(err, proxy.ErrDataplaneLost) != c.isLost {
				t.Errorf("got error %v, want one: %t, that wraps ErrDataplaneLost: %t", err, hasFailed, c.isLost)
			}
		})
	}
}
