package backendtest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/vipkit/vipkit/internal/netns"
)

// Main runs the tests of a package, with the privileges to build the testbed:
// without them it runs the test program again in a user namespace. It is for
// TestMain, and gives the status to exit with, which is not 0 if a test failed
// or a goroutine was left behind. Where the system denies user namespaces it
// says so on standard error, and the tests that need the testbed skip.
func Main(m *testing.M) int {
	run := func() int { return runTests(m) }
	status, err := netns.Privileged(run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return run()
	}
	return status
}

func runTests(m *testing.M) int {
	status := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(status, 1)
	}
	return status
}

// cannotRun skips a test for a reason, which on a CI machine fails it.
func cannotRun(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("CI must be able to run this test: %s", reason)
	}
	t.Skip(reason)
}

// setUp gives a testbed that ends with the test.
func setUp(t testing.TB) *testbed {
	t.Helper()
	if !netns.CanCreate() {
		cannotRun(t, "there are no privileges to make network namespaces")
	}
	b, err := newTestbed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}
