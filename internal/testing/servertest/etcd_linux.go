package servertest

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// quota is the limit of etcd's database, in bytes.
const quota = 4 << 30

// Etcd is an etcd cluster of one member.
type Etcd struct {
	// URL is the URL for clients, without encryption and authentication.
	URL string

	t       testing.TB
	program string
	folder  string
	args    []string
	process *Process
}

// StartEtcd runs etcd until the test ends. Without etcd on the machine, it skips the test.
func StartEtcd(t testing.TB) *Etcd {
	t.Helper()
	program, err := exec.LookPath("etcd")
	if err != nil {
		testenv.CannotRun(t, "needs the program etcd")
	}
	client, peer := "http://"+FreeAddress(t), "http://"+FreeAddress(t)
	e := &Etcd{URL: client, t: t, program: program, folder: t.TempDir()}
	e.args = []string{
		"--name=test", "--data-dir=" + filepath.Join(e.folder, "data"),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer,
		"--quota-backend-bytes=" + strconv.Itoa(quota),
	}
	e.Restart()
	return e
}

// Kill ends etcd. Its data stay for Restart.
func (e *Etcd) Kill() {
	if e.process != nil {
		e.process.Kill()
	}
}

// Restart kills etcd if it runs, starts it with its data, and waits until it serves.
func (e *Etcd) Restart() {
	e.t.Helper()
	e.Kill()
	e.process = Run(e.t, filepath.Join(e.folder, "log"), e.program, e.args...)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	e.process.Await(e.t, &http.Client{Transport: transport}, e.URL+"/health")
}
