package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// rerunMark is set in the environment of a program that Privileged has run again.
// Without it, Privileged would run the program again and again on a system whose user
// namespaces have no capabilities.
const rerunMark = "VIPKIT_USER_NAMESPACE"

// isolatedMark is set in the environment of a program that Isolated has run again.
const isolatedMark = "VIPKIT_NETWORK_NAMESPACE"

// UserNamespaceError reports that the system does not let the process create a user
// namespace with privileges.
type UserNamespaceError struct {
	// Reason is a sentence about the likely cause and its remedy.
	Reason string
	// Err is the error of the kernel.
	Err error
}

// Error returns the reason and the error of the kernel.
func (e *UserNamespaceError) Error() string {
	return fmt.Sprintf("netns: cannot create a user namespace (%v): %s", e.Err, e.Reason)
}

// Unwrap returns the error of the kernel.
func (e *UserNamespaceError) Unwrap() error { return e.Err }

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

// Privileged runs f if the process may make network namespaces. If not, it runs
// this program again, with the same arguments and standard streams, as root of
// a user and a network namespace of its own, whose loopback interface is up; there
// Privileged runs f. It returns what f returned, or the exit status of the second process (128 plus
// the signal, if one ended it), for the caller to pass to [os.Exit].
//
// The first process forwards signals that would end it to the second one, and the
// kernel kills the second one when the first one is killed. The second process is in a
// process group of its own, so it must not read from a terminal.
//
// Call it at the start of main or TestMain, before anything that should happen
// only once. The error is a [*UserNamespaceError] where the system denies user
// namespaces; f has not run then.
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
		return 0, &UserNamespaceError{
			Err:    unix.EPERM,
			Reason: "the user namespace has neither CAP_SYS_ADMIN nor CAP_NET_ADMIN; run as root",
		}
	}
	return rerun(rerunMark, inUserNamespace())
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
		return rerun(isolatedMark, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
	}
	return rerun(isolatedMark, inUserNamespace())
}

// inUserNamespace describes a process that is root of new namespaces.
func inUserNamespace() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
}

// rerun runs this program again, with a mark in its environment.
func rerun(mark string, attributes *syscall.SysProcAttr) (int, error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), mark+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attributes
	// The terminal signals only the first process, which forwards the signal,
	// so that the second process gets it once.
	attributes.Setpgid, attributes.Pdeathsig = true, unix.SIGKILL
	// The kernel sends Pdeathsig when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, &UserNamespaceError{Err: err, Reason: denial(err, sysctlValue)}
	}
	return wait(cmd, signals)
}

// wait forwards signals to a process until it ends, and returns its status.
func wait(cmd *exec.Cmd, signals <-chan os.Signal) (int, error) {
	ended := make(chan struct{})
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		for {
			select {
			case s := <-signals:
				// It fails only when the process has just ended.
				_ = cmd.Process.Signal(s)
			case <-ended:
				return
			}
		}
	}()
	err := cmd.Wait()
	close(ended)
	<-passed
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("netns: wait for the program in the user namespace: %w", err)
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// denial returns the likely reason why the kernel did not start a process in a user
// namespace.
func denial(err error, sysctl func(name string) string) string {
	switch {
	case sysctl("user/max_user_namespaces") == "0":
		return "the sysctl user.max_user_namespaces is 0; raise it or run as root"
	case sysctl("kernel/unprivileged_userns_clone") == "0":
		return "the sysctl kernel.unprivileged_userns_clone is 0; set it to 1 or run as root"
	case sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor restricts user namespaces; set the sysctl kernel.apparmor_restrict_unprivileged_userns to 0 or run as root"
	case errors.Is(err, unix.ENOSPC):
		return "there are too many user or network namespaces; end some or run as root"
	case errors.Is(err, unix.EINVAL):
		return "this kernel is built without user namespaces; run as root"
	case errors.Is(err, unix.EPERM):
		return "a security policy, such as a container's seccomp profile, forbids them; relax it or run as root"
	}
	return "run as root"
}

func sysctlValue(name string) string {
	value, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return "" // This kernel does not have it, so it is not the reason.
	}
	return strings.TrimSpace(string(value))
}
