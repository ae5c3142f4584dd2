package netnstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// lockVariable names the environment variable with the lock file of iptables. Tests use their own
// file, so that they and other programs of the machine do not wait for each other.
const lockVariable = "XTABLES_LOCKFILE"

// OwnXtablesLock makes a lock file of iptables for a test that holds the lock. Other tests
// share one.
func OwnXtablesLock(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "lock")
	t.Setenv(lockVariable, path)
	return path
}

// deniedVariable names the environment variable that tells tests why the system denies them
// namespaces.
const deniedVariable = "VIPKIT_NAMESPACES_DENIED"

// Main runs the tests of a package with the privileges to make network namespaces: a
// process without them runs the test program again in a user namespace. It is for
// TestMain, and returns the exit status, which is not 0 if a test failed or a goroutine
// is left. Where the system denies user namespaces, it writes the reason to standard
// error and runs the tests, which then skip themselves by NeedNamespaces.
func Main(m *testing.M, c testenv.Cost) int {
	return WithPrivileges(func() int { return testenv.Run(m, c) })
}

// administrators are the folders of nft and iptables, which most users other than root lack in
// their PATH.
const administrators = ":/usr/local/sbin:/usr/sbin:/sbin"

// WithPrivileges is Main for tests that run in another way than by testenv.Run.
func WithPrivileges(tests func() int) int {
	run := func() int {
		if os.Getenv(lockVariable) != "" {
			return tests() // A test has started this program.
		}
		folder, err := os.MkdirTemp("", "vipkit-xtables")
		if err == nil {
			err = errors.Join(
				os.Setenv(lockVariable, filepath.Join(folder, "lock")),
				os.Setenv("PATH", os.Getenv("PATH")+administrators))
		}
		status := tests()
		if err = errors.Join(err, os.RemoveAll(folder)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return max(status, 1)
		}
		return status
	}
	status, err := netns.Privileged(run)
	if err == nil {
		return status
	}
	fmt.Fprintln(os.Stderr, err)
	if err := os.Setenv(deniedVariable, err.Error()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run()
}

// NeedNamespaces skips a test that cannot make network namespaces.
func NeedNamespaces(t testing.TB) {
	t.Helper()
	if os.Getenv(lockVariable) == "" {
		t.Fatal("TestMain of this package does not call netnstest.Main, so only root can run this test")
	}
	if !netns.CanCreate() {
		testenv.CannotRun(t, "needs namespaces: "+os.Getenv(deniedVariable))
	}
}

// NewNS makes a network namespace, which is closed at the end of the test.
func NewNS(t testing.TB) *netns.NS {
	t.Helper()
	NeedNamespaces(t)
	ns, err := netns.New()
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, ns)
	return ns
}

// Open calls open in a network namespace, and closes the result at the end of the test.
func Open[C io.Closer](t testing.TB, ns *netns.NS, open func() (C, error)) C {
	t.Helper()
	var c C
	err := ns.Do(func() (err error) {
		c, err = open()
		return err
	})
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, c)
	return c
}

// NFT returns the path of the program nft.
func NFT(t testing.TB) string {
	t.Helper()
	return Program(t, "nft")
}

// Program returns the path of a program. It skips a test if the program is not installed.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		testenv.CannotRun(t, "needs the program "+name)
	}
	return path
}

// Run runs a program in a network namespace, and returns its standard output. An error
// includes its standard error.
func Run(t testing.TB, ns *netns.NS, input, path string, args ...string) (string, error) {
	t.Helper()
	return RunContext(t.Context(), ns, input, Program(t, path), args...)
}

// RunContext is Run of a program that exists, until ctx ends.
func RunContext(ctx context.Context, ns *netns.NS, input, path string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	err := ns.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(path), strings.Join(args, " "), errors.Join(err, ctx.Err()), &errs)
	}
	return out.String(), nil
}
