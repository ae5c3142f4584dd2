package inspect

import (
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// Limits of another Runner are beside those of the page's own, and the last ones count.
func TestSetLimits(t *testing.T) {
	limit := func(name string) *proxy.Problem {
		return &proxy.Problem{Kind: "Service", NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}, Field: "spec", Err: errors.New("limited")}
	}
	p := New("")
	p.history.synced(proxy.Sync{Applied: proxy.NewSnapshot(&proxy.Node{}), Limits: []*proxy.Problem{limit("own")}})
	for _, names := range [][]string{{"a", "b"}, {"b"}, nil} {
		var limits []*proxy.Problem
		want := []string{limit("own").Error()}
		for _, n := range names {
			limits, want = append(limits, limit(n)), append(want, limit(n).Error())
		}
		p.SetLimits(limits)
		if got := p.view(nil).Limits; !slices.Equal(got, want) {
			t.Errorf("%v: got limits %q, want %q", names, got, want)
		}
	}
}
