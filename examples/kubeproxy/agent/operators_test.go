package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestOperators reads command lines and configurations that installers of clusters give to kube-proxy.
// The program must start with them, and name what it ignores, and nothing else.
func TestOperators(t *testing.T) {
	t.Parallel()
	const folder = "testdata/operators"
	want := map[string][]string{
		"aks": nil, "k3s": nil, "kind": nil, "kubeadm": nil, "kubespray": nil, "microk8s": nil, "systemd": nil, "talos": nil,
		"eks":             {"field oomScoreAdj is ignored"},
		"gke":             {"flag -oom-score-adj is ignored"},
		"kops":            {"flag -oom-score-adj is ignored"},
		"windows-aks":     nil,
		"windows-flannel": {"field detectLocalMode is ignored: it is for Linux", "field detectLocal.bridgeInterface is ignored: it is for Linux"},
	}
	files, err := filepath.Glob(folder + "/*.args")
	if err != nil || len(files) != len(want) {
		t.Errorf("got %d command lines, error %v; want %d", len(files), err, len(want))
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".args")
		text, err := os.ReadFile(file)
		testenv.NoError(t, err)
		args := strings.Split(strings.ReplaceAll(strings.TrimSuffix(string(text), "\n"), "FILE", filepath.Join(folder, name+".yaml")), "\n")
		system := "linux"
		if strings.HasPrefix(name, "windows-") {
			system = "windows"
		}
		var out strings.Builder
		c, err := newConfig(system).readCommandLine(args, &out)
		if err != nil {
			t.Errorf("%s: got error %v, output %s", name, err, &out)
			continue
		}
		warnings, isKnown := want[name]
		if diff := cmp.Diff(warnings, c.warnings); diff != "" || !isKnown {
			t.Errorf("%s: is in the table: %t; warnings (-want +got):\n%s", name, isKnown, diff)
		}
	}
}
