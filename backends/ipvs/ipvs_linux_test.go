package ipvs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestIsUnloaded checks that only a folder about the network without a file about IPVS shows that the kernel
// has none: Cleanup would otherwise remove the rules of virtual servers that stay.
func TestIsUnloaded(t *testing.T) {
	for files, want := range map[string]bool{"": false, "dev": true, "dev ip_vs": false, "ip_vs": false} {
		folder := t.TempDir()
		for name := range strings.FieldsSeq(files) {
			testenv.NoError(t, os.WriteFile(filepath.Join(folder, name), nil, 0o600))
		}
		if got := isUnloaded(folder); got != want {
			t.Errorf("files %q: got %t, want %t", files, got, want)
		}
	}
	if isUnloaded(filepath.Join(t.TempDir(), "missing")) {
		t.Error("without a folder: got unloaded, want that it is not known")
	}
}
