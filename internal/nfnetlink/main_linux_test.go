package nfnetlink

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// childEnv marks the copy of the test binary that runs in a user namespace.
const childEnv = "NFNETLINK_TEST_USERNS"

// TestMain gives the tests the right to make network namespaces: without root
// they run as a copy of the binary in a user namespace.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 || inUserNamespace() {
		os.Exit(m.Run())
	}
	cmd := userNamespaceCommand(os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "no user namespace, tests on the kernel will say so:", err)
		os.Exit(m.Run())
	}
	os.Exit(0)
}

func inUserNamespace() bool { return os.Getenv(childEnv) != "" }

// userNamespaceCommand runs the test binary as root of a user namespace with a
// network namespace, like "unshare -rn".
func userNamespaceCommand(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   unix.SIGKILL,
	}
	return cmd
}

// lacking ends a test that cannot run here. In CI everything must run.
func lacking(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// enterNamespace moves the test, with its thread, into a fresh network
// namespace. The thread ends with the goroutine of the test, and the namespace
// with it.
func enterNamespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		lacking(t, "make a network namespace: %v", err)
	}
}

// openInNamespace is enterNamespace with a connection.
func openInNamespace(t testing.TB) *Conn {
	t.Helper()
	enterNamespace(t)
	return open(t)
}

func open(t testing.TB) *Conn {
	t.Helper()
	c, err := Open()
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// tryNft runs nft in the namespace of the test and returns what it printed.
func tryNft(t testing.TB, stdin string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		lacking(t, "the nft program of the package nftables is needed: %v", err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("nft %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func nft(t testing.TB, args ...string) string {
	t.Helper()
	out, err := tryNft(t, "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func loadNft(t testing.TB, ruleset string) {
	t.Helper()
	if _, err := tryNft(t, ruleset, "-f", "-"); err != nil {
		t.Fatalf("%v\nloading:\n%s", err, ruleset)
	}
}

func commit(t testing.TB, c *Conn, b *Batch) {
	t.Helper()
	if err := c.Commit(t.Context(), b); err != nil {
		t.Fatalf("Commit: %v", err)
	}
}
