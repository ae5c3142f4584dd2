package problemlog_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/problemlog"
)

type problem struct{ text string }

func (p *problem) Error() string { return p.text }

func describe(p *problem) (place []any, reason error) {
	return []any{"at", len(p.text)}, errors.New(p.text)
}

// A problem has one line when it begins and one when it ends, whichever value has its text.
func TestProblemsAreLoggedOnce(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	var l problemlog.Log[*problem]
	for _, texts := range [][]string{{"a", "bb"}, {"bb", "a", "a"}, {"bb", "ccc"}, nil, {"a"}} {
		var all []*problem
		for _, text := range texts {
			all = append(all, &problem{text})
		}
		l.Update(log, "bad", all, describe)
		lines = append(lines, "-")
	}
	bad := func(text string) string { return fmt.Sprintf(`"msg"="bad" "error"=%q "at"=%d`, text, len(text)) }
	gone := func(text string) string {
		return fmt.Sprintf(`"level"=0 "msg"="bad resolved" "at"=%d "was"=%q`, len(text), text)
	}
	want := []string{bad("a"), bad("bb"), "-", "-", gone("a"), bad("ccc"), "-", gone("bb"), gone("ccc"), "-", bad("a"), "-"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// A minute has a bounded number of lines, and one that says so.
func TestLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := 0
		log := funcr.New(func(_, _ string) { lines++ }, funcr.Options{})
		var l problemlog.Log[*problem]
		var many []*problem
		for i := range 3 * problemlog.Most {
			many = append(many, &problem{fmt.Sprint(i)})
		}
		for i, step := range []struct {
			after    time.Duration
			problems []*problem
			want     int
		}{
			{0, many, problemlog.Most + 1}, {0, many[:1], 0}, {time.Minute - 1, many, 0}, {0, many[:2], 0},
			{1, slices.Clone(many[:3]), 2}, {0, nil, 3},
			{time.Minute, many, problemlog.Most + 1}, {time.Second, many, 0}, {time.Minute, many, problemlog.Most + 1},
			{time.Minute, many, problemlog.Most}, {time.Minute, many, 0},
		} {
			time.Sleep(step.after)
			lines = 0
			if l.Update(log, "bad", step.problems, describe); lines != step.want {
				t.Errorf("step %d: got %d lines, want %d", i, lines, step.want)
			}
		}
	})
}
