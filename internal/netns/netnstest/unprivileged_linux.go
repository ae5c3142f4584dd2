package netnstest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Nobody is the user and group that own nothing.
const Nobody = 65534

// Unprivileged prepares to run this test program as a user without rights, with
// its own environment. It skips a test that runs as such a user already, or as
// root of a user namespace only: then all the tests do what it would do.
func Unprivileged(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	if !IsRoot(t) {
		t.Skip("this process is not root itself, so all tests run as a user without rights")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Nobody, Gid: Nobody}}
	cmd.Dir = "/"
	return cmd
}

// InUserNamespace reports whether the process is in a user namespace other than
// the machine's first: only that one has all user identities.
func InUserNamespace(t testing.TB) bool {
	t.Helper()
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(ids)), " ") != "0 0 4294967295"
}

// IsRoot reports whether the process is root of the machine, and so may become
// any user.
func IsRoot(t testing.TB) bool {
	t.Helper()
	return os.Getuid() == 0 && !InUserNamespace(t)
}
