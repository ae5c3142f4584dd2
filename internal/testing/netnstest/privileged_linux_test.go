package netnstest_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// actVariable, in the environment, names what this program does instead of running tests.
const actVariable = "NETNSTEST_ACT"

func perform(act string) int {
	var status int
	var err error
	switch act {
	case "current":
		var n *netns.NS
		if n, err = netns.Current(); err == nil {
			err = n.Do(n.Close)
		}
	case "isolated":
		status, err = netns.Isolated(func() int { fmt.Println(os.Readlink("/proc/self/ns/net")); return 5 })
	case "privileged":
		status, err = netns.Privileged(echo)
	}
	if err != nil {
		fmt.Println(err)
		return 99
	}
	return status
}

// echo makes a network namespace, and writes the standard input and the arguments.
func echo() int {
	n, err := netns.New()
	if err == nil {
		_, err = io.Copy(os.Stdout, os.Stdin)
	}
	if err == nil {
		err = n.Close()
	}
	if err != nil {
		fmt.Println(err)
		return 98
	}
	fmt.Fprintln(os.Stderr, strings.Join(os.Args[1:], " "))
	return 7
}

// unprivileged prepares a run of this program as a user without privileges.
func unprivileged(t *testing.T, act string, args ...string) *exec.Cmd {
	t.Helper()
	netnstest.NeedNamespaces(t)
	cmd := netnstest.Unprivileged(t, args...)
	cmd.Env = append(environment(true), actVariable+"="+act)
	return cmd
}

// The program that runs again has the standard streams, the arguments and the status of the first one.
func TestPrivileged(t *testing.T) {
	t.Parallel()
	cmd := unprivileged(t, "privileged", "one", "two")
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

func TestPrivilegedDoesNotRunTwice(t *testing.T) {
	t.Parallel()
	cmd := unprivileged(t, "privileged")
	cmd.Env = append(cmd.Env, "VIPKIT_USER_NAMESPACE=1")
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != 99 || !strings.Contains(string(out), "CAP_NET_ADMIN") {
		t.Errorf("exit status and output: got %d (%v) and %q, want 99 and one that contains CAP_NET_ADMIN", got, err, out)
	}
}

// TestIsolated checks that the program runs again in another network namespace, as root and as a
// user.
func TestIsolated(t *testing.T) {
	t.Parallel()
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

// Do needs no privilege to stay in the namespace of the process.
func TestDoWithoutPrivileges(t *testing.T) {
	t.Parallel()
	if out, err := unprivileged(t, "current").CombinedOutput(); err != nil {
		t.Errorf("Do in the current namespace: got %v, output %q, want no error", err, out)
	}
}
