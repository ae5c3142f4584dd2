package house

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestCapabilitiesAreReported checks that the tests of a backend report each column of the
// table in docs/capabilities.md; they fail if the column differs from their results.
func TestCapabilitiesAreReported(t *testing.T) {
	document, err := os.ReadFile(filepath.Join(root, "docs", "capabilities.md"))
	testenv.NoError(t, err)
	_, table, _ := strings.Cut(string(document), "<!-- capabilities -->\n")
	headings, _, found := strings.Cut(table, "\n")
	if !found {
		t.Fatal("docs/capabilities.md has no table")
	}
	var reports strings.Builder // all tests that report to this file
	for _, d := range readTree(t) {
		for _, s := range d.sources {
			text, err := os.ReadFile(filepath.Join(root, s.path))
			testenv.NoError(t, err)
			if strings.Contains(string(text), `backendtest.Report{File: "../../docs/capabilities.md"`) {
				reports.Write(text)
			}
		}
	}
	for heading := range strings.SplitSeq(strings.Trim(headings, "| "), "|") {
		if heading = strings.TrimSpace(heading); !strings.Contains(reports.String(), strconv.Quote(heading)) {
			t.Errorf("docs/capabilities.md: no backend reports column %q", heading)
		}
	}
}
