package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// programVariable, in the environment, makes the test program run the program under test. Its
// value is the name of the test.
const programVariable = "QUICKSTART_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		main()
	}
	os.Exit(backendtest.Main(m))
}

// newMachine makes a network namespace that stands for the machine that the program runs on, so
// that no other program changes what the test checks.
func newMachine(t *testing.T) *netns.NS {
	t.Helper()
	ns := netnstest.NewNS(t)
	if hasNFT() {
		nft(t, ns, "add table inet mine; add chain inet mine c; add rule inet mine c ip daddr 10.96.0.10 accept")
	}
	return ns
}

func hasNFT() bool {
	_, err := exec.LookPath("nft")
	return err == nil
}

// nft runs nft in a namespace and returns its output.
func nft(t *testing.T, ns *netns.NS, args ...string) string {
	t.Helper()
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.CommandContext(t.Context(), "nft", args...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("nft %v: %v: %s", args, err, out)
	}
	return string(out)
}

// state returns the state of the machine's own namespace that the program must not change.
func state(t *testing.T, machine *netns.NS) string {
	t.Helper()
	var all strings.Builder
	err := machine.Do(func() error {
		links, err := os.ReadDir("/proc/sys/net/ipv4/conf")
		if err != nil {
			return err
		}
		fmt.Fprintln(&all, links)
		for _, file := range []string{"/proc/thread-self/net/route", "/proc/thread-self/net/fib_trie", "/proc/sys/net/ipv4/ip_forward"} {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			all.Write(text)
		}
		return nil
	})
	testenv.NoError(t, err)
	if hasNFT() {
		all.WriteString(nft(t, machine, "list", "ruleset"))
	}
	return all.String()
}

// processes returns the processes of the program that a test has started, and their children.
func processes(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	testenv.NoError(t, err)
	var found []string
	for _, f := range files {
		// If the file cannot be read, the process has ended, or belongs to another user.
		text, err := os.ReadFile(f)
		if err == nil && bytes.Contains(text, []byte(programVariable+"="+t.Name())) {
			found = append(found, filepath.Dir(f))
		}
	}
	return found
}

// user is a user that runs the program.
type user struct {
	name       string
	credential *syscall.Credential
}

// users returns root and, if the tests run as root, an unprivileged user.
func users(t *testing.T) []user {
	t.Helper()
	all := []user{{name: "root"}}
	if netnstest.IsRoot(t) {
		all = append(all, user{"unprivileged", &syscall.Credential{Uid: netnstest.Nobody, Gid: netnstest.Nobody}})
	}
	return all
}

// outcome is the output and the exit status of the program.
type outcome struct {
	out, errs string
	status    int
}

// runProgram runs the program, as a user, on a new machine, and checks that it leaves nothing
// behind. It calls seen for each line that the program prints, before it reads the next one.
func runProgram(t *testing.T, who user, seen func(p *os.Process, line string)) outcome {
	t.Helper()
	machine := newMachine(t)
	before := state(t, machine)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	parent, child := socketPair(t)
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), programVariable+"="+t.Name())
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", child, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who.credential}
	testenv.NoError(t, machine.Do(cmd.Start))
	if err := child.Close(); err != nil {
		t.Error(err)
	}
	lines := bufio.NewScanner(parent)
	for lines.Scan() {
		if out.Len() == 0 && len(processes(t)) == 0 {
			t.Error("processes: got none, want the running program")
		}
		fmt.Fprintln(&out, lines.Text())
		seen(cmd.Process, lines.Text())
	}
	// The caller checks the exit status.
	_ = cmd.Wait()
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
	if left := processes(t); len(left) > 0 {
		t.Errorf("processes after the end: got %v, want none", left)
	}
	if diff := cmp.Diff(before, state(t, machine)); diff != "" {
		t.Errorf("state of the machine (-before +after):\n%s", diff)
	}
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// socketPair returns the ends of a stream whose buffer holds only a few lines, so that a program
// cannot run far ahead of its reader.
func socketPair(t *testing.T) (parent, child *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testenv.NoError(t, err)
	testenv.NoError(t, unix.SetsockoptInt(fds[1], unix.SOL_SOCKET, unix.SO_SNDBUF, 1))
	parent, child = os.NewFile(uintptr(fds[0]), "parent"), os.NewFile(uintptr(fds[1]), "child")
	t.Cleanup(func() { _ = parent.Close() }) // Nothing was written.
	return parent, child
}

func TestProgram(t *testing.T) {
	for _, who := range users(t) {
		t.Run(who.name, func(t *testing.T) {
			got := runProgram(t, who, func(*os.Process, string) {})
			if got.status != 0 || got.errs != "" {
				t.Fatalf("got exit status %d and standard error %q, want 0 and nothing, after\n%s", got.status, got.errs, got.out)
			}
			checkStory(t, got.out)
		})
	}
}

// checkStory checks that the output has the key lines, in order.
func checkStory(t *testing.T, out string) {
	t.Helper()
	rest := out
	for _, want := range []string{
		"client 192.0.2.10 ─── 192.0.2.1 node 10.244.1.1 ─── [pod-a] [pod-b] [pod-c]\n",
		"1. A Service appears\n", "Kernel operations: ",
		"2. A client uses it\n", " 60 requests to 10.96.0.10:80.", "pod-c  10.244.1.13  ", "█",
		"3. Whom do the pods see?\n", "the client -> pod-c  sees 10.244.1.1 ", "pod-a      -> pod-c  sees 10.244.1.11 ",
		"4. pod-c is deleted\n", "pod-c  10.244.1.13   0 \n",
		"5. pod-c comes back\n", "pod-c  10.244.1.13  ", "█",
		"6. pod-c is about to terminate\n", "An open connection to pod-c continues", "pod-c  10.244.1.13   0 \n",
		"7. A client sticks to its pod\n", " 60 " + strings.Repeat("█", 30) + "\n",
		"8. Why does a packet", "- 10.96.0.10:80/TCP is the ClusterIP of default/web:http", "=> forward\n",
		"9. A port that", "connection refused", "=> reject\n",
		"10. Everything is removed\n", "All is well.\n", "Where to go next\n",
	} {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("output: want %q after the lines before it, got\n%s", want, out)
		}
		rest = after
	}
}

// When the program prints its first line, it handles signals. It gets the signal after a few lines
// at most, since the stream holds no more.
func TestProgramInterrupted(t *testing.T) {
	for _, who := range users(t) {
		t.Run(who.name, func(t *testing.T) {
			var once sync.Once
			got := runProgram(t, who, func(p *os.Process, _ string) {
				once.Do(func() { testenv.NoError(t, p.Signal(syscall.SIGTERM)) })
			})
			if got.status != 1 || !strings.Contains(got.errs, "interrupted; nothing is left behind") || strings.Contains(got.out, "All is well.") {
				t.Errorf("got exit status %d and standard error %q, want 1 and a message about the interruption, after\n%s", got.status, got.errs, got.out)
			}
		})
	}
}

// If the system denies the privileges, the program prints what the user can do.
func TestProgramDenied(t *testing.T) {
	all := users(t)
	if len(all) == 1 {
		testenv.CannotRun(t, "needs root: the test becomes another user")
	}
	t.Setenv("VIPKIT_USER_NAMESPACE", "1") // as if a user namespace had not given the privileges
	got := runProgram(t, all[1], func(*os.Process, string) {})
	if got.status != 1 || got.out != "" || !strings.Contains(got.errs, "user namespace") || !strings.Contains(got.errs, "sudo /tmp/quickstart") {
		t.Errorf("got exit status %d, output %q, standard error %q, want 1, nothing, and what to do", got.status, got.out, got.errs)
	}
}

func TestRemedy(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("x: %w: %w", netns.ErrDenied, syscall.EPERM), "sudo /tmp/quickstart"},
		{fmt.Errorf("x: %w: %w", proxy.ErrUnsupported, syscall.EPERM), "modprobe -a nf_tables"},
		{syscall.EOPNOTSUPP, "modprobe veth"},
		{&os.PathError{Err: syscall.EROFS}, "--privileged"},
		{syscall.EPERM, "--privileged"},
	} {
		if got := remedy(test.err); !strings.Contains(got, test.want) {
			t.Errorf("remedy for %q: got %q, want one with %q", test.err, got, test.want)
		}
	}
	if got := remedy(io.EOF); got != "" {
		t.Errorf("remedy for %v: got %q, want none", io.EOF, got)
	}
}

func TestReadManifest(t *testing.T) {
	for _, test := range []struct{ name, old, new, want string }{
		{"as it is", "", "", ""},
		{"one object", "\n---\n", "\n", "a line --- between them"},
		{"no such field", "clusterIP:", "clusterAddress:", "Service: "},
		{"no address", "clusterIP: 10.96.0.10", "clusterIP: None", "spec.clusterIP: "},
		{"not a pod's address", "[10.244.1.12]", "[10.96.0.12]", "endpoint pod-b: 10.96.0.12 is not an address of a pod"},
		{"two addresses", "[10.244.1.12]", "[10.244.1.12, 10.244.1.14]", "one address and a targetRef"},
		{"two ports", "ports:\n- name: http\n  protocol: TCP\n  port: 8080", "ports:\n- {port: 1}\n- {port: 2}", "one port each"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := readManifest(strings.Replace(manifestYAML, test.old, test.new, 1))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
	one := manifestYAML[:strings.Index(manifestYAML, "- addresses: [10.244.1.12]")]
	if _, err := readManifest(one); err == nil || !strings.Contains(err.Error(), "at least two endpoints") {
		t.Errorf("one pod: got error %v, want one that says that two are required", err)
	}
}

// onePod answers all requests as pod-a.
type onePod struct{}

func (onePod) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{Body: io.NopCloser(strings.NewReader("pod-a 192.0.2.10"))}, nil
}

// TestSpreadFindsFaults checks that a step fails if the wrong pods answer.
func TestSpreadFindsFaults(t *testing.T) {
	m, err := readManifest(manifestYAML)
	testenv.NoError(t, err)
	s := &story{out: io.Discard, manifest: m, client: &http.Client{Transport: onePod{}}, last: "pod-a"}
	for want, wanted := range map[string]func(string) bool{
		"pod-c must answer":   s.isPod,
		"pod-a still answers": func(string) bool { return false },
		"<nil>":               func(name string) bool { return name == "pod-a" },
	} {
		if err := s.spread(t.Context(), wanted); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}
