package controlplane

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
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
