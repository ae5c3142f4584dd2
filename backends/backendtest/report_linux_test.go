package backendtest

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Every capability has its proof, and every scenario proves something.
func TestCapabilitiesHaveProofs(t *testing.T) {
	all, err := scenarios()
	testenv.NoError(t, err)
	proven := map[string]bool{}
	seen := map[Capability]bool{}
	for _, r := range rows() {
		if len(r.by) == 0 || seen[r.what] {
			t.Errorf("capability %q: got proofs %q, want at least one, and one row", r.what, r.by)
		}
		seen[r.what] = true
		for _, pattern := range r.by {
			for _, sc := range all {
				match, err := path.Match(pattern, "Scenarios/"+sc.name)
				testenv.NoError(t, err)
				proven[sc.name] = proven[sc.name] || match && pattern != "Scenarios/*"
			}
		}
	}
	for _, sc := range all {
		if !proven[sc.name] {
			t.Errorf("scenario %s: got no capability that it proves, want one", sc.name)
		}
	}
}

func TestVerdictOfResults(t *testing.T) {
	r := course{passed: map[string]bool{"Scenarios/a": true, "Scenarios/ab": true, "Scenarios/b": false, "Laws/Economy": true}}
	for _, c := range []struct {
		by   []string
		want string
	}{
		{[]string{"Scenarios/a", "Laws/*"}, ""},
		{[]string{"Scenarios/a*"}, ""},
		{[]string{"Scenarios/*"}, "Scenarios/b did not pass"},
		{[]string{"Scenarios/a", "Random"}, "no Random ran"},
	} {
		got := ""
		if err := r.verdict(c.by); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: got error %q, want %q", c.by, got, c.want)
		}
	}
}

// withColumn fills in a column and keeps the others; it adds a column that does not exist.
func TestWithColumn(t *testing.T) {
	first, second := rows()[0].what, rows()[1].what
	before := "# Title\n" + tableBegins + "| | this | that |\n|---|---|---|\n| " + string(second) + " | old | kept |\n| gone | x | y |\n" + tableEnds + "Text.\n"
	for _, c := range []struct{ column, heading, firstRow, secondRow string }{
		{"this", "| | this | that |", "| " + string(first) + " | one | |", "| " + string(second) + " | two | kept |"},
		{"another", "| | this | that | another |", "| " + string(first) + " | | | one |", "| " + string(second) + " | old | kept | two |"},
	} {
		got, err := withColumn(before, c.column, map[Capability]string{first: "one", second: "two"})
		testenv.NoError(t, err)
		lines := strings.Split(got, "\n")
		want := []string{"# Title", strings.TrimSpace(tableBegins), c.heading}
		testenv.Same(t, want, lines[:3], "%s", c.column)
		testenv.Same(t, []string{c.firstRow, c.secondRow}, lines[4:6], "%s", c.column)
		if len(lines) != 4+len(rows())+3 || slices.Contains(lines, "| gone | x | y |") || !strings.HasSuffix(got, tableEnds+"Text.\n") {
			t.Errorf("%s: want one line for each row and the text around as it was, got\n%s", c.column, got)
		}
	}
	if _, err := withColumn("no table", "this", nil); err == nil {
		t.Error("document without a table: got no error, want one")
	}
}

// The report has the results of the run, and is written only with VIPKIT_UPDATE.
func TestReportFollowsTheRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	testenv.NoError(t, os.WriteFile(file, []byte(tableBegins+"| |\n|---|\n"+tableEnds), 0o600))
	c := Config{Lacks: []Capability{Failover}, course: &course{}}
	c.Report = Report{File: file, Column: "mine", Remarks: map[Capability]string{Failover: "ask a friend", Adoption: "fast"}}
	for _, r := range rows() {
		for _, pattern := range r.by {
			c.course.ran(strings.ReplaceAll(pattern, "*", "x"), true)
		}
	}
	c.course.ran("Balance", false)
	if _, err := c.cells(); err == nil || !strings.Contains(err.Error(), "Balance did not pass") {
		t.Errorf("Balance failed: got error %v, want one that names it", err)
	}
	c.course.ran("Balance", true)
	t.Setenv(updateVariable, "1")
	c.testReport(t)
	t.Setenv(updateVariable, "")
	c.testReport(t)
	text, err := os.ReadFile(file)
	testenv.NoError(t, err)
	for _, want := range []string{"| " + string(Failover) + " | no; ask a friend |\n", "| " + string(Adoption) + " | yes; fast |\n", "| " + string(Affinity) + " | yes |\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("want the line %q in\n%s", want, text)
		}
	}
}
