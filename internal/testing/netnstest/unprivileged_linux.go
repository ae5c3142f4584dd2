package netnstest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Nobody is the user and group that own nothing.
const Nobody = 65534

// Unprivileged prepares to run this test program as a user without privileges, with
// its own environment. Only root can become another user.
func Unprivileged(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	NeedRoot(t, "the test becomes another user")
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Nobody, Gid: Nobody}}
	cmd.Dir = "/"
	return cmd
}

// InUserNamespace reports whether the process is in a user namespace other than the
// initial one: only that one maps all user IDs.
func InUserNamespace(t testing.TB) bool {
	t.Helper()
	ids, err := os.ReadFile("/proc/self/uid_map")
	testenv.NoError(t, err)
	return strings.Join(strings.Fields(string(ids)), " ") != "0 0 4294967295"
}

// NeedRoot skips a test that does what root of a user namespace may not.
func NeedRoot(t testing.TB, what string) {
	t.Helper()
	if !IsRoot(t) {
		testenv.CannotRun(t, "needs root: "+what)
	}
}

// IsRoot reports whether the process is root in the initial user namespace, and so may
// become any user.
func IsRoot(t testing.TB) bool {
	t.Helper()
	return os.Getuid() == 0 && !InUserNamespace(t)
}
