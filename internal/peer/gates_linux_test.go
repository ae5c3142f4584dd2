package peer_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestGatesAreKnown looks for feature gates in kube-proxy's code. The document of gates, which a test of
// the agent compares with the agent, must name each.
func TestGatesAreKnown(t *testing.T) {
	document, err := os.ReadFile("../../docs/feature-gates.md")
	testenv.NoError(t, err)
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	testenv.NoError(t, err)
	asked := regexp.MustCompile(`Enabled\(\w*features\.(\w+)\)`)
	found := map[string]bool{}
	for _, folder := range []string{"pkg/proxy", "cmd/kube-proxy"} {
		err := filepath.WalkDir(filepath.Join(strings.TrimSpace(string(module)), folder), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range asked.FindAllSubmatch(text, -1) {
				found[string(m[1])] = true
			}
			return err
		})
		testenv.NoError(t, err)
	}
	if len(found) < 8 {
		t.Errorf("gates that kube-proxy reads: got %v, want more", found)
	}
	for name := range found {
		if !strings.Contains(string(document), "| `"+name+"` |") {
			t.Errorf("feature gate %s, which kube-proxy reads, is not in docs/feature-gates.md", name)
		}
	}
}
