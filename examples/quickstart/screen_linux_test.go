package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestParseFlags(t *testing.T) {
	for _, c := range []struct {
		args string
		step bool
		out  string
		err  error
	}{
		{args: ""},
		{args: "-step", step: true},
		{args: "-h", out: "wait for Enter", err: flag.ErrHelp},
		{args: "-help", out: "wait for Enter", err: flag.ErrHelp},
		{args: "-x", out: "not defined: -x"},
		{args: "x", out: `unexpected argument "x"`},
	} {
		var out strings.Builder
		step, err := parseFlags(strings.Fields(c.args), &out)
		if step != c.step || c.err != nil && !errors.Is(err, c.err) || (err == nil) != (c.out == "") || !strings.Contains(out.String(), c.out) {
			t.Errorf("%q: got step %t, error %v, output %q, want %t, %v, %q", c.args, step, err, out.String(), c.step, c.err, c.out)
		}
	}
}

// TestExitStatusOfHelp runs the program.
func TestExitStatusOfHelp(t *testing.T) {
	for flag, want := range map[string]int{"-h": 0, "-x": 2} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", flag)
		cmd.Env = append(os.Environ(), programVariable+"="+t.Name())
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want || !strings.Contains(string(out), "-step") {
			t.Errorf("%s: got exit status %d (%v), output %q, want %d, and the flags", flag, got, err, out, want)
		}
	}
}

func TestSayWraps(t *testing.T) {
	for _, c := range []struct {
		width      int
		text, want string
	}{
		{20, "one two three four five", "   one two three\n   four five\n"},
		{20, "- one two three four five", "   - one two three\n     four five\n"},
		{20, "  - one two three four", "     - one two three\n       four\n"},
		{20, "averylongwordthatdoesnotfit anywhere", "   averylongwordthatdoesnotfit anywhere\n"},
		{20, "one averylongwordthatdoesnotfit", "   one\n   averylongwordthatdoesnotfit\n"},
		{20, "──────── ────────", "   ──────── ────────\n"},
		{20, "\x1b[32m████████\x1b[0m ████████", "   \x1b[32m████████\x1b[0m ████████\n"},
		{0, strings.Repeat("word ", 100), "   " + strings.Repeat("word ", 100) + "\n"},
	} {
		var out strings.Builder
		(&screen{out: &out, width: c.width}).say("%s", c.text)
		if diff := cmp.Diff(c.want, out.String()); diff != "" {
			t.Errorf("width %d (-want +got):\n%s", c.width, diff)
		}
	}
}

// TestBarFits checks that bars are within the screen, and in proportion.
func TestBarFits(t *testing.T) {
	const text = "  pod-a  10.244.1.11  20"
	for _, c := range []struct{ width, number, columns int }{
		{0, 60, 30}, {100, 60, 30}, {100, 21, 11}, {100, 1, 1}, {100, 0, 0}, {58, 60, 30}, {57, 60, 29},
		{36, 60, 8}, {36, 30, 4}, {36, 1, 1}, {36, 0, 0}, {29, 60, 1}, {28, 60, 0}, {27, 60, 0},
	} {
		var out strings.Builder
		(&screen{out: &out, width: c.width}).bar(text, c.number, 60)
		got := out.String()
		if strings.Count(got, "█") != c.columns || strings.Count(got, "\n") != 1 || strings.HasSuffix(got, " \n") {
			t.Errorf("width %d, number %d: got %q, want one line with %d columns", c.width, c.number, got, c.columns)
		}
		if c.width > 0 && visible(strings.TrimSuffix(got, "\n")) > c.width {
			t.Errorf("width %d, number %d: got %q, which is wider", c.width, c.number, got)
		}
	}
}

func TestWidth(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	testenv.NoError(t, err)
	defer func() { _ = terminal.Close() }() // Nothing was written.
	testenv.NoError(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 73}))
	for _, c := range []struct {
		columns string
		want    int
	}{{"", 73}, {"50", 50}, {"5", 20}, {"x", 73}, {"-1", 73}} {
		t.Setenv("COLUMNS", c.columns)
		if got := width(terminal); got != c.want {
			t.Errorf("COLUMNS=%q: got %d, want %d", c.columns, got, c.want)
		}
	}
	file, err := os.Open(os.DevNull)
	testenv.NoError(t, err)
	defer func() { _ = file.Close() }() // Nothing was written.
	t.Setenv("COLUMNS", "")
	if got := width(file); got != 100 {
		t.Errorf("without a terminal: got %d, want 100", got)
	}
}

// TestPause checks that a step waits for a line, no longer than its context, and not after the end
// of the input.
func TestPause(t *testing.T) {
	read, write := io.Pipe()
	s := &screen{out: io.Discard}
	s.stepBy(read)
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if err := s.pause(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("pause with a context that has ended: got %v, want %v", err, context.Canceled)
	}
	if _, err := io.WriteString(write, "\n"); err != nil {
		t.Fatal(err)
	}
	if err := s.pause(t.Context()); err != nil {
		t.Error(err)
	}
	testenv.NoError(t, write.Close())
	for range 2 {
		if err := s.pause(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s.stepBy(iotest.ErrReader(errors.New("no terminal")))
	if err := s.pause(t.Context()); err != nil {
		t.Errorf("an input that fails: got %v, want no error", err)
	}
}

// TestProgramSteps runs the program with -step, with and without privileges, and presses Enter at
// each question.
func TestProgramSteps(t *testing.T) {
	for _, who := range users(t) {
		t.Run(who.name, func(t *testing.T) {
			machine := newMachine(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "/proc/self/exe", "-step")
			cmd.Env = append(os.Environ(), programVariable+"="+t.Name())
			cmd.Dir = "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who.credential}
			in, err := cmd.StdinPipe()
			testenv.NoError(t, err)
			out, err := cmd.StdoutPipe()
			testenv.NoError(t, err)
			testenv.NoError(t, machine.Do(cmd.Start))
			text := pressEnter(t, out, in)
			if err := cmd.Wait(); err != nil {
				t.Errorf("the program: %v, after\n%s", err, text)
			}
			if got := strings.Count(text, prompt); got != 9 {
				t.Errorf("questions: got %d, want one before each of 9 steps, in\n%s", got, text)
			}
			if !strings.Contains(text, "\nWhere to go next\n") || !strings.Contains(text, "examples/kubeproxy") {
				t.Errorf("end: got no hints where to go next, want some, in\n%s", text)
			}
		})
	}
}

const prompt = "Press Enter to go on."

// pressEnter answers each question, and checks that the next step has not begun before. It returns
// what was printed.
func pressEnter(t *testing.T, out io.Reader, in io.Writer) string {
	t.Helper()
	var all bytes.Buffer
	buffer := make([]byte, 4096)
	for answered := 0; ; {
		n, err := out.Read(buffer)
		all.Write(buffer[:n])
		if strings.Count(all.String(), prompt) > answered {
			if _, after, _ := strings.Cut(all.String(), prompt); answered == 0 && after != "" {
				t.Errorf("after the first question: got %q, want nothing before Enter", after)
			}
			answered++
			if _, err := io.WriteString(in, "\n"); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			return all.String() // The caller checks how the program has ended.
		}
	}
}

// TestHeadingWraps checks that titles of steps are as wide as the terminal, and bold in each line.
func TestHeadingWraps(t *testing.T) {
	var out strings.Builder
	s := &screen{out: &out, width: 20, colour: true}
	s.step("A port that the Service does not have")
	want := "\n\x1b[1m1. A port that the\x1b[0m\n\x1b[1mService does not\x1b[0m\n\x1b[1mhave\x1b[0m\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}
