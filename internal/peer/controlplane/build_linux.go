package controlplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// buildAPIServer builds kube-apiserver, a tool of this module, unless the go command has it in its cache.
func buildAPIServer(t testing.TB) (path string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "tool", "-n", "kube-apiserver").Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("building kube-apiserver: %w\n%s", err, failed.Stderr)
	}
	testenv.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// Build builds a program as a user does, in the folder of a module, with variables for the environment. It returns the
// path of the program, which has the name of the package.
func Build(t testing.TB, module, pkg string, variables ...string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), filepath.Base(pkg))
	build := exec.CommandContext(t.Context(), "go", "build", "-C", module, "-o", program, pkg)
	build.Env = append(os.Environ(), variables...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", pkg, err, out)
	}
	return program
}

// Kubeconfig writes a kubeconfig of the client with a token, for the API server at a URL, whose certificate it does not
// check.
func Kubeconfig(t testing.TB, path, server, token string) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
users: [{name: test, user: {token: %q}}]
`, server, token)
	testenv.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}
