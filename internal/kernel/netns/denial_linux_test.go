package netns

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestDenial(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		err     error
		sysctls map[string]string
		want    string
	}{
		{"none allowed", unix.ENOSPC, map[string]string{"user/max_user_namespaces": "0"}, "user.max_user_namespaces"},
		{"Debian's switch", unix.EPERM, map[string]string{"kernel/unprivileged_userns_clone": "0"}, "unprivileged_userns_clone"},
		{"AppArmor", unix.EACCES, map[string]string{"kernel/apparmor_restrict_unprivileged_userns": "1"}, "AppArmor"},
		{"too many", unix.ENOSPC, map[string]string{"user/max_user_namespaces": "100"}, "too many"},
		{"not built in", unix.EINVAL, nil, "built without"},
		{"forbidden", unix.EPERM, map[string]string{"kernel/unprivileged_userns_clone": "1"}, "security policy"},
		{"anything else", unix.ENOMEM, nil, "run as root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := denial(c.err, func(name string) string { return c.sysctls[name] })
			if !strings.Contains(got, c.want) {
				t.Errorf("denial(%v): got %q, want it to contain %q", c.err, got, c.want)
			}
			if !strings.Contains(got, "run as root") {
				t.Errorf("denial(%v): got %q, want it to contain %q", c.err, got, "run as root")
			}
		})
	}
}

func TestSysctlValue(t *testing.T) {
	t.Parallel()
	testenv.Same(t, "Linux", sysctlValue("kernel/ostype"), "kernel/ostype")
	if got := sysctlValue("kernel/no_such_thing"); got != "" {
		t.Errorf("an unknown sysctl: got %q, want an empty value", got)
	}
}

// A listing that a change interrupts is repeated; one that fails for another reason is not.
func TestListsAreConsistent(t *testing.T) {
	t.Parallel()
	interrupted := fmt.Errorf("list: %w", netlink.ErrDumpInterrupted)
	for _, c := range []struct {
		errs  []error
		want  error
		tries int
	}{
		{[]error{nil}, nil, 1},
		{[]error{interrupted, interrupted, nil}, nil, 3},
		{[]error{interrupted, io.ErrUnexpectedEOF}, io.ErrUnexpectedEOF, 2},
		{nil, netlink.ErrDumpInterrupted, listTries},
	} {
		tries := 0
		all, err := Consistent(func() ([]int, error) {
			tries++
			if tries > len(c.errs) {
				return []int{tries}, interrupted
			}
			return []int{tries}, c.errs[tries-1]
		})
		if !errors.Is(err, c.want) || tries != c.tries || len(all) != 1 || all[0] != tries {
			t.Errorf("%v: got %v and error %v after %d tries, want error %v after %d", c.errs, all, err, tries, c.want, c.tries)
		}
	}
}

func TestDestinationErrors(t *testing.T) {
	t.Parallel()
	for name, control := range map[string][]byte{"none": nil, "cut off": {1, 0, 0}} {
		if a, ok := destination(control); ok {
			t.Errorf("%s: destination: got %v, want none", name, a)
		}
	}
}
