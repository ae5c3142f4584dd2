package house

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// area is one line of budgets.tsv, with the lines of code that it has now.
type area struct {
	name               string
	goal, limit, lines int
}

// TestLines prints the lines of each area beside its budget, and fails if an area has more than its limit.
func TestLines(t *testing.T) {
	table := "\n  lines    goal   limit  area\n"
	for _, a := range countLines(t) {
		table += fmt.Sprintf("%7d %7d %7d  %s\n", a.lines, a.goal, a.limit, a.name)
		if a.lines > a.limit {
			t.Errorf("area %q has %d lines, its limit in internal/house/budgets.tsv is %d: "+
				"remove code, or raise the limit with the reason in the commit", a.name, a.lines, a.limit)
		}
	}
	t.Log(table)
}

// countLines returns the areas of budgets.tsv in their order, each with its lines, and at the end all
// production code.
func countLines(t *testing.T) []*area {
	t.Helper()
	text, err := os.ReadFile("budgets.tsv")
	testenv.NoError(t, err)
	var all []*area
	production, areaOf := &area{name: "all but tests"}, map[string]*area{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 4 {
			t.Fatalf("internal/house/budgets.tsv: got %d columns, want 4: %q", len(fields), line)
		}
		a := &area{name: fields[2]}
		_, err := fmt.Sscan(fields[0]+" "+fields[1], &a.goal, &a.limit)
		testenv.NoError(t, err)
		for folder := range strings.FieldsSeq(fields[3]) {
			if areaOf[folder] != nil {
				t.Errorf("internal/house/budgets.tsv: two areas name the folder %s", folder)
			}
			areaOf[folder] = a
			if _, err := os.Stat(filepath.Join(root, folder)); err != nil && a.name != "tests" {
				t.Errorf("internal/house/budgets.tsv: %v", err)
			}
		}
		if a.name != "tests" {
			production.goal += a.goal
			production.limit += a.limit
		}
		all = append(all, a)
	}
	for _, name := range goFiles(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		testenv.NoError(t, err)
		lines := bytes.Count(text, []byte("\n"))
		key := path.Dir(name)
		for areaOf[key] == nil && key != "." {
			key = path.Dir(key)
		}
		switch isTest := strings.HasSuffix(name, "_test.go"); {
		case isTest:
			areaOf["*_test.go"].lines += lines
		case key == "." && path.Dir(name) != ".":
			t.Errorf("internal/house/budgets.tsv: no area has the folder of %s", name)
		default:
			areaOf[key].lines += lines
			production.lines += lines
		}
	}
	return append(all, production)
}
