package backendtest

import (
	"testing"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// Main runs the tests of a package, with the privileges to build the testbed:
// without them it runs the test program again in a user namespace. It is for
// TestMain, and returns the status to exit with, which is not 0 if a test failed
// or a goroutine still runs. If the system denies user namespaces it reports that
// on standard error, and the tests that need the testbed are skipped.
func Main(m *testing.M) int { return netnstest.Main(m, testenv.Namespaces) }

// setUp returns a testbed that ends with the test.
func setUp(t testing.TB) *testbed {
	t.Helper()
	return setUpIn(t, world{})
}

// setUpIn returns the testbed of a world, which ends with the test.
func setUpIn(t testing.TB, w world) *testbed {
	t.Helper()
	netnstest.NeedNamespaces(t)
	b, err := newTestbed(t.Context(), w)
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, b)
	b.configureWorld(t)
	return b
}
