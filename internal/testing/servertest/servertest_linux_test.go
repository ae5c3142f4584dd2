package servertest

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestEndsWithTheTest starts a program that would outlive the test.
func TestEndsWithTheTest(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	testenv.NoError(t, err)
	var p *Process
	t.Run("inner", func(t *testing.T) {
		p = Run(t, filepath.Join(t.TempDir(), "log"), sleep, "600")
	})
	if err := p.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("result of the program: got %v, want signal: killed", err)
	}
	p.Kill()
}

// TestSaysWhyItEnded waits for a server that ends at once.
func TestSaysWhyItEnded(t *testing.T) {
	shell, err := exec.LookPath("sh")
	testenv.NoError(t, err)
	p := Run(t, filepath.Join(t.TempDir(), "log"), shell, "-c", "echo no luck today; exit 1")
	said := testenv.Record(t, func(t testing.TB) { p.Await(t, &http.Client{}, "http://"+FreeAddress(t)) })
	if len(said) != 1 || !strings.Contains(said[0], "ended before it served") || !strings.Contains(said[0], "no luck today") {
		t.Errorf("failure messages: got %q, want that the program ended, and its output", said)
	}
}

// TestEtcd starts and restarts etcd.
func TestEtcd(t *testing.T) {
	e := StartEtcd(t)
	e.Restart()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	if err := get(&http.Client{Transport: transport}, e.URL+"/version"); err != nil {
		t.Error(err)
	}
}
