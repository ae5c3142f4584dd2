package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// actVariable in the environment makes the test program the program itself.
const actVariable = "KUBEPROXY_TEST_ACT"

func TestMain(m *testing.M) {
	if os.Getenv(actVariable) != "" {
		// The process ends with its test, however that ends: the test holds
		// the other end of standard input.
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(3)
		}()
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(netnstest.Main(m))
}

// need looks for a program that a test cannot do without.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		testenv.CannotRun(t, err.Error())
	}
}

// patience bounds every wait.
const patience = 30 * time.Second

// program is a process that runs the program in a network namespace.
type program struct {
	t     *testing.T
	ns    *netns.NS
	cmd   *exec.Cmd
	out   io.Closer // the log
	lines chan string
	log   []string // what has been taken from lines
}

// start starts the program. It ends with the test at the latest.
func start(t *testing.T, ns *netns.NS, flags ...string) *program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startCommand(t, ns, append([]string{exe}, flags...)...)
}

// startCommand starts a command that runs the program.
func startCommand(t *testing.T, ns *netns.NS, command ...string) *program {
	t.Helper()
	p := &program{t: t, ns: ns, cmd: exec.Command(command[0], command[1:]...), lines: make(chan string, 10000)}
	p.cmd.Env = append(os.Environ(), actVariable+"=1")
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(p.cmd.Start); err != nil {
		t.Fatal(err)
	}
	p.out = out
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.end(os.Kill)
		}
		if t.Failed() {
			t.Logf("kubeproxy %s logged\n%s", strings.Join(command[1:], " "), strings.Join(p.log, "\n"))
		}
	})
	return p
}

// await waits for a line with all of these parts.
func (p *program) await(parts ...string) {
	p.t.Helper()
	p.awaitEach(parts)
}

// awaitEach waits for several lines, in any order, each with all of its parts.
func (p *program) awaitEach(lines ...[]string) {
	p.t.Helper()
	for timeout := time.After(patience); len(lines) > 0; {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the program ended without logging lines with %q", lines)
			}
			p.log = append(p.log, line)
			if i := slices.IndexFunc(lines, func(parts []string) bool { return hasAll(line, parts) }); i >= 0 {
				lines = slices.Delete(lines, i, i+1)
			}
		case <-timeout:
			p.t.Fatalf("no lines with %q are logged within %v", lines, patience)
		}
	}
}

func hasAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// end sends a signal, nil for none, waits until the process has ended, and gives
// its status: -1 if it was killed.
func (p *program) end(signal os.Signal) int {
	p.t.Helper()
	if signal != nil {
		_ = p.cmd.Process.Signal(signal) // It may have just ended.
	}
	kill := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() }) // Likewise.
	defer kill.Stop()
	for line := range p.lines {
		p.log = append(p.log, line)
	}
	if err := p.cmd.Wait(); p.cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// terminate asks the process to end, and checks that it does so in order.
func (p *program) terminate() {
	p.t.Helper()
	if status := p.end(syscall.SIGTERM); status != 0 || !hasAll(strings.Join(p.log, "\n"), []string{"stopped; the rules stay"}) {
		p.t.Errorf("the status after SIGTERM is %d, wanted 0 and a line that says so", status)
	}
}

// page asks for a page of the program, as a client on its node.
func (p *program) page(ctx context.Context, url string) (string, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, network, at string) (net.Conn, error) { return p.ns.Dial(ctx, network, at) },
	}, Timeout: 5 * time.Second}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	return response.Status + "\n" + string(body), errors.Join(err, response.Body.Close())
}

// awaitPage asks for a page until it has all of these parts.
func (p *program) awaitPage(url string, parts ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for {
		text, err := p.page(ctx, url)
		if err == nil && hasAll(text, parts) {
			return
		}
		select {
		case <-ctx.Done():
			p.t.Fatalf("%s gives no page with %q, at last (error %v)\n%s", url, parts, err, text)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
