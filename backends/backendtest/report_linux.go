package backendtest

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Report is a table of capabilities in a document, with a row for each and a column
// with the results of a run.
type Report struct {
	// File is a document in Markdown that has the table between the lines
	//
	//	<!-- capabilities -->
	//	<!-- end of capabilities -->
	File string
	// Column is the heading of the column. If the table has no such column, it is added.
	Column string
	// Remarks are added to the "yes" or "no" of the run: words, or a footnote of the
	// document such as "[^name]".
	Remarks map[Capability]string
}

// updateVariable names the environment variable that, if 1, makes [Run] write
// reports instead of comparing them.
const updateVariable = "VIPKIT_UPDATE"

// run is t.Run for a subtest that is part of the report, by its path below that of
// Run. It runs nothing if the run is over.
func (c *Config) run(t *testing.T, name string, f func(*testing.T)) (passed bool) {
	t.Helper()
	if c.course.ended() != "" {
		return false
	}
	if c.world.name != "" {
		name = path.Join("Worlds", string(c.world.name), name)
	}
	c.course.name(name)
	return t.Run(path.Base(name), func(t *testing.T) {
		t.Cleanup(func() { c.course.ran(name, !t.Failed() && !t.Skipped()) })
		f(t)
	})
}

// runBeside is run for a subtest with a testbed of its own, which runs beside others.
func (c *Config) runBeside(t *testing.T, name string, f func(*testing.T)) {
	t.Helper()
	c.run(t, name, func(t *testing.T) {
		t.Parallel()
		f(t)
	})
}

// group is t.Run for a subtest that has others, by its path below that of Run.
func (c *Config) group(t *testing.T, name string, f func(*testing.T)) (passed bool) {
	t.Helper()
	c.course.name(name)
	return t.Run(path.Base(name), f)
}

// verdict returns nil if all subtests that prove a capability ran and passed, else an error.
func (c *course) verdict(by []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, pattern := range by {
		found := false
		for name, passed := range c.passed {
			if match, err := path.Match(pattern, name); err != nil {
				return err
			} else if !match {
				continue
			}
			found = true
			if !passed {
				errs = append(errs, fmt.Errorf("%s did not pass", name))
			}
		}
		if !found {
			errs = append(errs, fmt.Errorf("no %s ran", pattern))
		}
	}
	return errors.Join(errs...)
}

// cells returns the cell of each capability, and an error for those without proof.
func (c *Config) cells() (map[Capability]string, error) {
	cells := map[Capability]string{}
	var errs []error
	for _, r := range rows() {
		cell := "yes"
		if c.lacks(r.what) {
			cell = "no"
		} else if err := c.course.verdict(r.by); err != nil {
			errs = append(errs, fmt.Errorf("no proof of %q: %w", r.what, err))
		}
		if remark := c.Report.Remarks[r.what]; strings.HasPrefix(remark, "[^") {
			cell += remark
		} else if remark != "" {
			cell += "; " + remark
		}
		cells[r.what] = cell
	}
	for what := range c.Report.Remarks {
		if !known(what) {
			errs = append(errs, fmt.Errorf("remark: unknown capability %q", what))
		}
	}
	return cells, errors.Join(errs...)
}

// testReport compares the column of the report, or writes it.
func (c *Config) testReport(t *testing.T) {
	update := testenv.Flag(t, updateVariable)
	cells, err := c.cells()
	testenv.NoError(t, err)
	text, err := os.ReadFile(c.Report.File)
	testenv.NoError(t, err)
	want, err := withColumn(string(text), c.Report.Column, cells)
	if err != nil {
		t.Fatalf("%s: %v", c.Report.File, err)
	}
	switch {
	case want == string(text):
	case update:
		if err := os.WriteFile(c.Report.File, []byte(want), 0o644); err != nil { //nolint:gosec // a document is readable for all users
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from this run; %s=1 updates it (-is +should be):\n%s",
			c.Report.File, updateVariable, cmp.Diff(strings.Split(string(text), "\n"), strings.Split(want, "\n")))
	}
}

// The lines around the table.
const (
	tableBegins = "<!-- capabilities -->\n"
	tableEnds   = "<!-- end of capabilities -->\n"
)

// withColumn returns a document with one column of its table filled in. The rows are
// those of the suite; the cells of other columns are kept.
func withColumn(document, column string, cells map[Capability]string) (string, error) {
	before, rest, begins := strings.Cut(document, tableBegins)
	old, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		return "", fmt.Errorf("no table between %q and %q", tableBegins, tableEnds)
	}
	headings, others := []string{""}, map[string][]string{}
	for i, line := range strings.Split(strings.TrimSuffix(old, "\n"), "\n") {
		fields := splitRow(line)
		switch i {
		case 0:
			headings = fields
		case 1: // the line below
		default:
			others[fields[0]] = fields
		}
	}
	at := slices.Index(headings, column)
	if at < 0 {
		at = len(headings)
		headings = append(headings, column)
	}
	var table strings.Builder
	writeRow(&table, headings)
	table.WriteString(strings.Repeat("|---", len(headings)) + "|\n")
	for _, r := range rows() {
		fields := make([]string, len(headings))
		copy(fields, others[r.label()])
		fields[0], fields[at] = r.label(), cells[r.what]
		writeRow(&table, fields)
	}
	return before + tableBegins + table.String() + tableEnds + after, nil
}

func splitRow(line string) []string {
	fields := strings.Split(strings.Trim(line, "|"), "|")
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	return fields
}

func writeRow(out *strings.Builder, fields []string) {
	out.WriteString("|")
	for _, f := range fields {
		out.WriteString(strings.TrimRight(" "+f, " ") + " |")
	}
	out.WriteString("\n")
}
