package agent

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestBadKubeconfig checks that the program ends at once with a kubeconfig that it cannot use.
func TestBadKubeconfig(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for text, want := range map[string]string{
		"":                                 "no such file",
		"- a":                              "cannot unmarshal array",
		"a: [":                             "did not find expected node content",
		"apiVersion: v1\nkind: Config\n":   "no configuration has been provided",
		"apiVersion: v2\nkind: Dragon\n":   "no kind \\\"Dragon\\\" is registered",
		kubeconfigOf("ftp://:x"):           "host must be a URL",
		kubeconfigOf("https://192.0.2.1 "): "host must be a URL",
	} {
		path := filepath.Join(folder, fmt.Sprint(len(text)))
		if text != "" {
			testenv.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
		var out strings.Builder
		status := Main([]string{"-kubeconfig", path, "-proxy-mode", supportedMode()}, &out, &out)
		if status != 1 || !strings.Contains(out.String(), "API server: ") || !strings.Contains(out.String(), want) {
			t.Errorf("kubeconfig %q: got status %d and\n%s\nwant 1 and %s", text, status, &out, want)
		}
	}
}

func kubeconfigOf(server string) string {
	return "apiVersion: v1\nkind: Config\ncurrent-context: test\nclusters: [{name: test, cluster: {server: '" + server + "'}}]\n" +
		"contexts: [{name: test, context: {cluster: test}}]\n"
}

// TestWhatRemainsIsTriedAgain checks that what is left of other modes is logged and tried again after
// longer and longer pauses, of ten minutes at most.
func TestWhatRemainsIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log []string
		a := &instance{log: funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}), pauses: pauses()}
		for i, step := range []struct {
			left, stale error
			want        string
			pause       time.Duration
		}{
			{io.ErrNoProgress, nil, `"msg"="rules of another mode`, 5 * time.Second},
			{nil, io.ErrNoProgress, `"msg"="stale conntrack`, 10 * time.Second},
		} {
			log = nil
			a.cleanedUp(step.left, step.stale)
			if pause := time.Until(a.cleanAt); a.cleaned || pause != step.pause || len(log) != 1 || !strings.Contains(log[0], step.want) {
				t.Errorf("step %d: got cleaned %t, pause %v, log %q; want false, %v, one line with %s", i, a.cleaned, pause, log, step.pause, step.want)
			}
		}
		log = nil
		if a.cleanedUp(nil, nil); !a.cleaned || len(log) > 0 {
			t.Errorf("without an error: got cleaned %t, log %q; want true and no line", a.cleaned, log)
		}
		for range 30 {
			a.cleanedUp(io.ErrNoProgress, nil)
		}
		if pause := time.Until(a.cleanAt); pause != 10*time.Minute {
			t.Errorf("after many tries: got a pause of %v, want 10 minutes", pause)
		}
	})
}

// supportedMode returns a mode of this operating system.
func supportedMode() string {
	if runtime.GOOS == windowsSystem {
		return userspaceMode
	}
	return nftablesMode
}

// TestNoAPIServer checks that the program names the missing setting outside of a pod.
func TestNoAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var out strings.Builder
	const want = "set clientConnection.kubeconfig or -kubeconfig"
	if status := Main([]string{"-proxy-mode", supportedMode()}, &out, &out); status != 1 || !strings.Contains(out.String(), want) {
		t.Errorf("got status %d and\n%s\nwant 1 and %s", status, &out, want)
	}
}
