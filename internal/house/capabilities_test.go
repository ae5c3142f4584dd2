package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every column of the README's table of capabilities is written by the tests of a
// backend; they fail if it says otherwise than their run.
func TestCapabilitiesAreReported(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(readme), "<!-- capabilities -->\n")
	headings, _, found := strings.Cut(table, "\n")
	if !found {
		t.Fatal("the README has no table of capabilities")
	}
	reported := map[string]bool{}
	column := regexp.MustCompile(`Report\{File: "../../README.md", Column: "([^"]+)"`)
	for _, d := range readTree(t) {
		for _, s := range d.sources {
			text, err := os.ReadFile(filepath.Join(root, s.path))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range column.FindAllStringSubmatch(string(text), -1) {
				reported[m[1]] = true
			}
		}
	}
	for heading := range strings.SplitSeq(strings.Trim(headings, "| "), "|") {
		if heading = strings.TrimSpace(heading); !reported[heading] {
			t.Errorf("README.md: no backend reports column %q of the table of capabilities", heading)
		}
	}
}
