package netnstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/testenv"
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

// Main runs the tests of a package with the privileges to make network namespaces: a
// process without them runs the test program again in a user namespace. It is for
// TestMain, and returns the exit status, which is not 0 if a test failed or a goroutine
// is left. Where the system denies user namespaces, it writes the reason to standard
// error and runs the tests, which then skip themselves by NeedNamespaces.
func Main(m *testing.M, c testenv.Cost) int {
	run := func() int {
		if os.Getenv(lockVariable) != "" {
			return testenv.Run(m, c) // A test has started this program.
		}
		folder, err := os.MkdirTemp("", "vipkit-xtables")
		if err == nil {
			err = os.Setenv(lockVariable, filepath.Join(folder, "lock"))
		}
		status := testenv.Run(m, c)
		if err = errors.Join(err, os.RemoveAll(folder)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return max(status, 1)
		}
		return status
	}
	status, err := netns.Privileged(run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return run()
	}
	return status
}

// NeedNamespaces skips a test that cannot make network namespaces.
func NeedNamespaces(t testing.TB) {
	t.Helper()
	if !netns.CanCreate() {
		testenv.CannotRun(t, "no privileges to make network namespaces")
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
	// Most users other than root lack /usr/sbin in their PATH.
	for _, name := range []string{"nft", "/usr/sbin/nft"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	testenv.CannotRun(t, "the program nft is not installed")
	return ""
}

// Run runs a program in a network namespace, and returns its standard output. An error
// includes its standard error.
func Run(t testing.TB, ns *netns.NS, input, path string, args ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	err := ns.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(path), strings.Join(args, " "), err, &errs)
	}
	return out.String(), nil
}
