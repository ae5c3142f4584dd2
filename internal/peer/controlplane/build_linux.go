package controlplane

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// apiServerPackage is a tool of this module.
const apiServerPackage = "k8s.io/kubernetes/cmd/kube-apiserver"

// buildAPIServer builds kube-apiserver, if the go command finds that it is out of date. Only
// one process at a time builds.
func buildAPIServer(ctx context.Context) (path string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("building kube-apiserver: %w", err)
	}
	folder := filepath.Join(cache, "vipkit-peer")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("building kube-apiserver: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("building kube-apiserver: %w", err)
	}
	defer func() { _ = lock.Close() }() // The file is empty.
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("waiting for another process that builds kube-apiserver: %w", err)
	}
	path = filepath.Join(folder, "kube-apiserver")
	build := exec.CommandContext(ctx, "go", "build", "-o", path, apiServerPackage)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building kube-apiserver: %w\n%s", err, out)
	}
	return path, nil
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
