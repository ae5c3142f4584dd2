package userspace_test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// withoutRaw tells a process of the test program that it has no CAP_NET_RAW; withoutIPv6, that
// it must make all its attempts to open an IPv6 socket fail.
const (
	withoutRaw  = "VIPKIT_TEST_WITHOUT_RAW"
	withoutIPv6 = "VIPKIT_TEST_WITHOUT_IPV6"
)

// If a privilege or IPv6 is missing, the error is proxy.ErrUnsupported and names it, so that
// callers do not retry for ever.
func TestMissingPrivileges(t *testing.T) {
	netnstest.NeedNamespaces(t)
	wanted := map[string]string{withoutRaw: "CAP_NET_RAW", withoutIPv6: "Options.Families"}
	for variable, want := range wanted {
		if os.Getenv(variable) != "" {
			checkUnsupported(t, variable, want)
			return
		}
	}
	for variable := range wanted {
		t.Run(variable, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMissingPrivileges$")
			cmd.Env = append(os.Environ(), variable+"=1")
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
				if variable == withoutRaw {
					if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_RAW, 0, 0, 0); err != nil {
						done <- err
						return
					}
				}
				out, err := cmd.CombinedOutput()
				if err != nil {
					err = errors.Join(err, errors.New(string(out)))
				}
				done <- err
			}()
			testenv.NoError(t, <-done)
		})
	}
}

func checkUnsupported(t *testing.T, variable, want string) {
	t.Helper()
	n := newNetwork(t)
	if variable == withoutIPv6 {
		netnstest.DenyIPv6(t)
	}
	b := n.start(t, userspace.Options{})
	err := b.Apply(t.Context(), proxy.Snapshot{}, snapshot(one))
	if !errors.Is(err, proxy.ErrUnsupported) || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one that is %v and names %s", err, proxy.ErrUnsupported, want)
	}
}
