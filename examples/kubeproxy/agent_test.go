package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// Problems are logged when they are new, and whoever makes very many does not fill
// the log.
func TestProblemsAreToldOnce(t *testing.T) {
	lines := 0
	a := &agent{log: funcr.New(func(_, _ string) { lines++ }, funcr.Options{})}
	problem := func(i int) *proxy.Problem {
		name := types.NamespacedName{Namespace: "default", Name: fmt.Sprint("s", i)}
		return &proxy.Problem{Kind: "Service", NamespacedName: name, Field: "spec", Err: fmt.Errorf("%s", strings.Repeat("x", i))}
	}
	var many []*proxy.Problem
	for i := range 3 * maxTold {
		many = append(many, problem(i))
	}
	for i, step := range []struct {
		problems []*proxy.Problem
		want     int
	}{
		{many[:2], 2},
		{many[:2], 0},
		{[]*proxy.Problem{problem(0), problem(1)}, 0}, // the same, found again
		{many[:3], 1},
		{many[:1], 0},
		{many[:2], 1}, // which was solved in the meantime
		{many, maxTold + 1},
		{many, 0},
		{nil, 0},
	} {
		lines = 0
		if a.tell(step.problems); lines != step.want {
			t.Errorf("step %d: %d lines are logged, wanted %d", i, lines, step.want)
		}
	}
}
