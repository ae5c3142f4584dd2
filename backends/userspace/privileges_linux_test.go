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
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/proxy"
)

// withoutRaw says, to a process of this program, that it has no CAP_NET_RAW;
// withoutIPv6, that its every attempt to get a socket of IPv6 fails.
const (
	withoutRaw  = "VIPKIT_TEST_WITHOUT_RAW"
	withoutIPv6 = "VIPKIT_TEST_WITHOUT_IPV6"
)

// What is missing shows as such, with what it is, so that nobody tries for ever.
func TestWhatIsMissing(t *testing.T) {
	netnstest.NeedNamespaces(t)
	wanted := map[string]string{withoutRaw: "CAP_NET_RAW", withoutIPv6: "Options.Families"}
	for variable, want := range wanted {
		if os.Getenv(variable) != "" {
			applyInVain(t, variable, want)
			return
		}
	}
	for variable := range wanted {
		t.Run(variable, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWhatIsMissing$")
			cmd.Env = append(os.Environ(), variable+"=1")
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // and never again anything else
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
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	}
}

func applyInVain(t *testing.T, variable, want string) {
	t.Helper()
	n := newNetwork(t)
	if variable == withoutIPv6 {
		denyIPv6(t)
	}
	b := n.start(t, userspace.Options{})
	err := b.Apply(t.Context(), proxy.Snapshot{}, snapshot(one))
	if !errors.Is(err, proxy.ErrUnsupported) || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one that is %v and names %s", err, proxy.ErrUnsupported, want)
	}
}
