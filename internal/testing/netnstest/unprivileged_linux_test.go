package netnstest_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// deniedVariable is set in the environment of a program that denies user namespaces, and then
// runs the tests as another user.
const deniedVariable = "NETNSTEST_DENY"

func TestMain(m *testing.M) {
	if act := os.Getenv(actVariable); act != "" {
		os.Exit(perform(act))
	}
	if os.Getenv(deniedVariable) != "" {
		os.Exit(runDenied())
	}
	os.Exit(netnstest.Main(m, testenv.Namespaces))
}

// runDenied runs the tests as a user in this user namespace, where it allows no more user
// namespaces. The setting is of this user namespace alone.
func runDenied() int {
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		fmt.Println(err)
		return 99
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, deniedVariable+"=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: netnstest.Nobody, Gid: netnstest.Nobody}}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		fmt.Println(err)
		return 98
	}
	return cmd.ProcessState.ExitCode()
}

// TestNamespace is what other tests run as a user without privileges.
func TestNamespace(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	if _, err := netnstest.Run(t, ns, "", "iptables", "-A", "INPUT", "-j", "ACCEPT"); err != nil {
		t.Error(err)
	}
}

// TestLoopback is what other tests run as a user without privileges: in the namespace of the
// process, servers listen and clients connect.
func TestLoopback(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, l)
	c, err := net.Dial("tcp", l.Addr().String())
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, c)
}

const both = "-test.run=^(TestNamespace|TestLoopback)$"

// environment returns the variables of an ordinary user, in CI or not.
func environment(ci bool) []string {
	all := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "TMPDIR=/tmp"}
	if ci {
		all = append(all, "CI=true")
	}
	return all
}

// A user gets namespaces, and with them the programs of administrators.
func TestUserGetsNamespaces(t *testing.T) {
	t.Parallel()
	netnstest.Program(t, "iptables")
	cmd := netnstest.Unprivileged(t, "-test.v", both)
	cmd.Env = environment(true)
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"--- PASS: TestNamespace ", "--- PASS: TestLoopback "} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("got error %v, want none and %q in:\n%s", err, want, out)
		}
	}
}

// Where the system denies user namespaces, tests that need no namespaces run, and the others say
// why they do not.
func TestDeniedUserSeesTheReason(t *testing.T) {
	t.Parallel()
	const reason = "allow user namespaces by the sysctls user.max_user_namespaces"
	for _, c := range []struct {
		ci     bool
		status int
		want   []string
	}{
		{false, 0, []string{"needs namespaces: netns: ", reason, "--- SKIP: TestNamespace ", "--- PASS: TestLoopback "}},
		{true, 1, []string{reason, "--- FAIL: TestNamespace ", "--- PASS: TestLoopback "}},
	} {
		cmd := netnstest.Unprivileged(t, "-test.v", both)
		cmd.Env = append(environment(c.ci), deniedVariable+"=1")
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: netnstest.Nobody, HostID: netnstest.Nobody, Size: 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true}
		out, _ := cmd.CombinedOutput() // The exit status says it.
		if got := cmd.ProcessState.ExitCode(); got != c.status {
			t.Errorf("CI %t: got exit status %d, want %d", c.ci, got, c.status)
		}
		for _, want := range c.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("CI %t: want %q in:\n%s", c.ci, want, out)
			}
		}
	}
}

// Root, as in CI, also notices that a package lacks Main, without which users get no namespaces.
func TestNamespacesNeedMain(t *testing.T) {
	t.Setenv("XTABLES_LOCKFILE", "") // Main sets it.
	said := testenv.Record(t, netnstest.NeedNamespaces)
	if len(said) != 1 || !strings.Contains(said[0], "does not call netnstest.Main") {
		t.Errorf("got %q, want a message about Main", said)
	}
}
