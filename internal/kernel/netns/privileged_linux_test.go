package netns_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// The tests of Privileged run this test binary without privileges; actVariable names what
// it then does, which is not to run tests.
const actVariable = "NETNS_TEST_ACT"

const nobody = 65534

func perform(act string) int {
	switch act {
	case "current":
		return enterCurrent()
	case "isolated":
		status, err := netns.Isolated(func() int { fmt.Println(os.Readlink("/proc/self/ns/net")); return 5 })
		if err != nil {
			fmt.Println(err)
		}
		return status
	}
	status, err := netns.Privileged(func() int { return actPrivileged(act) })
	if err != nil {
		fmt.Println(err)
		return 99
	}
	return status
}

// enterCurrent enters the network namespace in which the process is.
func enterCurrent() int {
	n, err := netns.Current()
	if err == nil {
		err = n.Do(n.Close)
	}
	if err != nil {
		fmt.Println(err)
		return 95
	}
	return 0
}

func actPrivileged(act string) int {
	n, err := netns.New()
	if err != nil {
		fmt.Println(err)
		return 98
	}
	defer func() { _ = n.Close() }() // The process ends anyway.
	switch act {
	case "echo":
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			return 96
		}
		fmt.Fprintln(os.Stderr, strings.Join(os.Args[1:], " "))
		return 7
	case "signal":
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, unix.SIGTERM)
		fmt.Println(os.Getpid())
		if <-signals == unix.SIGTERM {
			return 8
		}
	case "die":
		fmt.Println(unix.Kill(os.Getpid(), unix.SIGKILL))
	}
	return 97
}

// unprivileged prepares a run of this program as a user without privileges.
func unprivileged(t *testing.T, act string, args ...string) *exec.Cmd {
	t.Helper()
	newNS(t) // It skips the test on systems without privileges.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = []string{actVariable + "=" + act}
	if os.Getuid() == 0 && !inUserNamespace(t) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return cmd
	}
	testenv.CannotRun(t, "needs root: the test becomes another user")
	return nil
}

// inUserNamespace reads the map of user IDs: only the initial user namespace maps all of
// them.
func inUserNamespace(t *testing.T) bool {
	t.Helper()
	ids, err := os.ReadFile("/proc/self/uid_map")
	testenv.NoError(t, err)
	return strings.Join(strings.Fields(string(ids)), " ") != "0 0 4294967295"
}

func TestPrivilegedPassesOn(t *testing.T) {
	t.Parallel()
	cmd := unprivileged(t, "echo", "one", "two")
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("hello"), &out, &errs
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != 7 {
		t.Errorf("exit status: got %d (%v), want 7", got, err)
	}
	// The runtime writes more lines if the tests' coverage is measured.
	firstLine, _, _ := strings.Cut(errs.String(), "\n")
	if out.String() != "hello" || firstLine != "one two" {
		t.Errorf("standard output and error: got %q and %q, want %q and %q", out.String(), firstLine, "hello", "one two")
	}
}

// TestIsolated checks that the program runs again in another network namespace, as root and as a
// user.
func TestIsolated(t *testing.T) {
	ours, err := os.Readlink("/proc/self/ns/net")
	testenv.NoError(t, err)
	user := unprivileged(t, "isolated")
	root := exec.CommandContext(t.Context(), "/proc/self/exe")
	root.Env = user.Env
	for _, cmd := range []*exec.Cmd{user, root} {
		out, err := cmd.Output()
		if got := cmd.ProcessState.ExitCode(); got != 5 {
			t.Errorf("exit status: got %d (%v), want 5", got, err)
		}
		if !strings.HasPrefix(string(out), "net:[") || strings.Contains(string(out), ours) {
			t.Errorf("network namespace: got %q, want another one than %s", out, ours)
		}
	}
}

func TestPrivilegedStatusOfKilled(t *testing.T) {
	t.Parallel()
	cmd := unprivileged(t, "die")
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != 128+9 {
		t.Errorf("exit status after SIGKILL of the second process: got %d (%v), want 137", got, err)
	}
}

// start runs the act "signal" and returns the PID of its second process.
func start(t *testing.T) (first *exec.Cmd, second int) {
	t.Helper()
	first = unprivileged(t, "signal")
	out, err := first.StdoutPipe()
	must(t, err, first.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("output of the second process: got %q, error %v", line, err)
	}
	second, err = strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("output of the second process: got %q, want its PID", line)
	}
	return first, second
}

func TestPrivilegedPassesSignals(t *testing.T) {
	t.Parallel()
	first, _ := start(t)
	must(t, first.Process.Signal(unix.SIGTERM))
	err := first.Wait()
	if got := first.ProcessState.ExitCode(); got != 8 {
		t.Errorf("exit status: got %d (%v), want 8 from the handler of SIGTERM", got, err)
	}
}

func TestPrivilegedDiesWithFirst(t *testing.T) {
	t.Parallel()
	first, second := start(t)
	pidfd, err := unix.PidfdOpen(second, 0)
	must(t, err)
	defer func() { must(t, unix.Close(pidfd)) }()
	must(t, first.Process.Kill())
	if err := first.Wait(); err == nil {
		t.Error("Wait for the killed first process: got no error, want one")
	}
	const patience = time.Minute
	if err := awaitReadable(pidfd, patience); err != nil {
		t.Errorf("the second process still runs %v after the first one was killed: %v", patience, err)
		must(t, unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0))
	}
}

// awaitReadable continues to wait when a signal interrupts it, such as those by which the
// runtime preempts goroutines.
func awaitReadable(fd int, patience time.Duration) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(patience); ; {
		ready, err := unix.Poll(fds, max(0, int(time.Until(end).Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && ready == 0:
			return os.ErrDeadlineExceeded
		}
		return err
	}
}

func TestPrivilegedDoesNotRunTwice(t *testing.T) {
	t.Parallel()
	cmd := unprivileged(t, "echo")
	cmd.Env = append(cmd.Env, "VIPKIT_USER_NAMESPACE=1")
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != 99 || !strings.Contains(string(out), "CAP_NET_ADMIN") {
		t.Errorf("exit status and output: got %d (%v) and %q, want 99 and one that contains CAP_NET_ADMIN", got, err, out)
	}
}

func TestUserNamespaceError(t *testing.T) {
	t.Parallel()
	err := error(&netns.UserNamespaceError{Reason: "because.", Err: unix.EPERM})
	want := "netns: cannot create a user namespace (operation not permitted): because."
	if err.Error() != want {
		t.Errorf("message: got %q, want %q", err, want)
	}
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("error: got %v, want it to wrap EPERM", err)
	}
}

// Do needs no privilege to stay in the namespace of the process.
func TestDoWithoutPrivileges(t *testing.T) {
	t.Parallel()
	if out, err := unprivileged(t, "current").CombinedOutput(); err != nil {
		t.Errorf("Do in the current namespace: got %v, output %q, want no error", err, out)
	}
}
