//go:build linux

package netns_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) {
	run := func() int { return testenv.Run(m, testenv.Namespaces) }
	status, err := netns.Privileged(run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = run()
	}
	os.Exit(status)
}

// newNS makes a namespace, which is closed at the end of the test.
func newNS(t *testing.T) *netns.NS {
	t.Helper()
	if !netns.CanCreate() {
		testenv.CannotRun(t, "needs root or user namespaces")
	}
	n, err := netns.New()
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, n)
	return n
}
