package netns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"
)

// rerunMark is set in the environment of a program that Privileged has run again.
// Without it, Privileged would run the program again and again on a system whose user
// namespaces have no capabilities.
const rerunMark = "VIPKIT_USER_NAMESPACE"

// isolatedMark is set in the environment of a program that Isolated has run again.
const isolatedMark = "VIPKIT_NETWORK_NAMESPACE"

// ErrDenied reports that the system does not let the process create a user namespace with privileges.
var ErrDenied = errors.New("cannot create a user namespace: run as root, or allow user namespaces by the sysctls " +
	"user.max_user_namespaces, kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns")

// CanCreate reports whether this process may make and configure network
// namespaces: whether it has CAP_SYS_ADMIN and CAP_NET_ADMIN.
func CanCreate() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	const need = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN
	return data[0].Effective&need == need
}

// Privileged runs f if the process may make network namespaces, and returns what f returns. If not, it
// replaces the process: the program unshare of util-linux runs this program again, with the same arguments,
// as root of a user and a network namespace of its own, whose loopback interface is up; there Privileged
// runs f.
//
// Call it at the start of main or TestMain, before anything that should happen
// only once. The error is [ErrDenied] where the system denies user namespaces; f has not run then.
func Privileged(f func() int) (int, error) {
	isRerun := os.Getenv(rerunMark) != ""
	switch {
	case CanCreate() && isRerun:
		if err := ownLoopbackUp(); err != nil {
			return 0, err
		}
		return f(), nil
	case CanCreate():
		return f(), nil
	case isRerun:
		return 0, fmt.Errorf("netns: %w: it has neither CAP_SYS_ADMIN nor CAP_NET_ADMIN", ErrDenied)
	}
	return 0, rerun(rerunMark, "-r", "-n")
}

// ownLoopbackUp makes the addresses of loopback usable in the namespace of the process.
func ownLoopbackUp() error {
	n, err := Current(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	return errors.Join(n.loopbackUp(), n.Close())
}

// Isolated runs this program again, as [Privileged] does, in a network namespace of its
// own, with or without privileges outside of it; there Isolated runs f. All goroutines and
// child processes are in the namespace, whose interfaces are down.
func Isolated(f func() int) (int, error) {
	switch {
	case os.Getenv(isolatedMark) != "":
		return f(), nil
	case CanCreate():
		return 0, rerun(isolatedMark, "-n")
	}
	return 0, rerun(isolatedMark, "-r", "-n")
}

// rerun replaces the process by unshare, which runs this program again with a mark in its environment.
func rerun(mark string, flags ...string) error {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return fmt.Errorf("netns: %w: %w", ErrDenied, err)
	}
	if out, err := exec.Command(unshare, append(flags, "true")...).CombinedOutput(); err != nil {
		return fmt.Errorf("netns: %w: %w: %s", ErrDenied, err, bytes.TrimSpace(out))
	}
	// The user may lack the right to search the folders above the program. Its descriptor needs no path.
	program, err := unix.Open("/proc/self/exe", unix.O_PATH, 0)
	if err != nil {
		return fmt.Errorf("netns: this program: %w", err)
	}
	args := slices.Concat([]string{unshare}, flags, []string{fmt.Sprintf("/proc/self/fd/%d", program)}, os.Args[1:])
	return fmt.Errorf("netns: running %s: %w", unshare, unix.Exec(unshare, args, append(os.Environ(), mark+"=1")))
}
