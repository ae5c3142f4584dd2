package userspace_test

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// without tells a process of the test program that it must make all its attempts to use netfilter
// fail.
const without = "VIPKIT_TEST_WITHOUT_NETFILTER"

// Local routes work on a kernel without netfilter, or where it may not be used: the test runs in a
// process whose attempts to use it fail, as on such a kernel.
func TestLocalRoutesWithoutNetfilter(t *testing.T) {
	n := newNetwork(t)
	needLocalRoutes(t, n)
	if os.Getenv(without) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLocalRoutesWithoutNetfilter$", "-test.v")
		cmd.Env = append(os.Environ(), without+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	n.serve(t, podServer)
	netnstest.DenyNetfilter(t)
	if _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err == nil {
		t.Fatal("opening a netfilter socket: got no error, want one")
	}
	b := n.start(t, userspace.Options{Capture: userspace.LocalRoutes})
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
	apply(t, b, snapshot(two))
	n.wantAnswer(t, two)
	if b.Drifted(t.Context()) {
		t.Error("Drifted: got true, want false")
	}
	testenv.NoError(t, b.Cleanup(t.Context()))
	if got := n.local(t); len(got) != 0 {
		t.Errorf("local routes after Cleanup: got %q, want none", got)
	}
}
