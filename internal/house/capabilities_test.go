package house

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

// TestCapabilitiesAreReported checks that the tests of a backend report each column of the
// README's table of capabilities; they fail if the column differs from their results.
func TestCapabilitiesAreReported(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	testenv.NoError(t, err)
	_, table, _ := strings.Cut(string(readme), "<!-- capabilities -->\n")
	headings, _, found := strings.Cut(table, "\n")
	if !found {
		t.Fatal("the README has no table of capabilities")
	}
	var reports strings.Builder // all tests that report to the README
	for _, d := range readTree(t) {
		for _, s := range d.sources {
			text, err := os.ReadFile(filepath.Join(root, s.path))
			testenv.NoError(t, err)
			if strings.Contains(string(text), `backendtest.Report{File: "../../README.md"`) {
				reports.Write(text)
			}
		}
	}
	for heading := range strings.SplitSeq(strings.Trim(headings, "| "), "|") {
		if heading = strings.TrimSpace(heading); !strings.Contains(reports.String(), strconv.Quote(heading)) {
			t.Errorf("README.md: no backend reports column %q of the table of capabilities", heading)
		}
	}
}
