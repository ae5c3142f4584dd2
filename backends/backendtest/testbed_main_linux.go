package backendtest

import (
	"testing"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// Main runs the tests of a package, with the privileges to build the testbed:
// without them it runs the test program again in a user namespace. It is for
// TestMain, and gives the status to exit with, which is not 0 if a test failed
// or a goroutine was left behind. Where the system denies user namespaces it
// says so on standard error, and the tests that need the testbed skip.
func Main(m *testing.M) int { return netnstest.Main(m) }

// setUp gives a testbed that ends with the test.
func setUp(t testing.TB) *testbed {
	t.Helper()
	return setUpIn(t, world{})
}

// setUpIn gives the testbed of a world, which ends with the test.
func setUpIn(t testing.TB, w world) *testbed {
	t.Helper()
	netnstest.NeedNamespaces(t)
	b, err := newTestbed(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	testenv.CloseAtEnd(t, b)
	b.settle(t)
	return b
}
