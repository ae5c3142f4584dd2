package house

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackagesAreInTheArchitecture: the table of packages says the same floors as
// the rule, and leaves none out.
func TestPackagesAreInTheArchitecture(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, floor := range floors() {
		if name == "." {
			continue // it has nothing but documentation
		}
		if line := fmt.Sprintf("| %d | `%s` |", floor, name); !strings.Contains(string(text), line) {
			t.Errorf("docs/architecture.md: there is no line that begins with %s", line)
		}
	}
}
