package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// shell makes a program of a script.
func shell(t *testing.T, folder, name, script string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func hereOf(t *testing.T) *place {
	t.Helper()
	at, err := here()
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// A program ends with who started it, holds the guard, and is not waited for without end.
func TestCommand(t *testing.T) {
	var out bytes.Buffer
	in := newInput([]byte("x"))
	p := program{path: "/bin/true", args: []string{"a", "b"}, in: in, out: &out}
	cmd := p.command(t.Context(), os.Stdin)
	if want := []string{"/bin/true", "a", "b"}; !slices.Equal(cmd.Args, want) || cmd.Stdin != in || cmd.Stdout != &out {
		t.Errorf("arguments %q, want %q; or what it reads and writes is not what was given", cmd.Args, want)
	}
	if a := cmd.SysProcAttr; cmd.WaitDelay != lingering || !a.Setpgid || a.Pdeathsig != unix.SIGKILL {
		t.Errorf("it is waited for %v, in a group of its own: %t, killed by %v; want %v, true and %v", cmd.WaitDelay, a.Setpgid, a.Pdeathsig, lingering, unix.SIGKILL)
	}
	if len(cmd.ExtraFiles) != 1 || cmd.ExtraFiles[0] != os.Stdin {
		t.Errorf("it inherits %v, want the guard", cmd.ExtraFiles)
	}
	if files := p.command(t.Context(), nil).ExtraFiles; len(files) > 0 {
		t.Errorf("without a guard, it inherits %v", files)
	}
}

// What a program leaves behind holds the guard, until it is told to go.
func TestGuardIsInherited(t *testing.T) {
	lock := OwnLock(t)
	folder := t.TempDir()
	opens := filepath.Join(folder, "opens")
	if err := unix.Mkfifo(opens, 0o600); err != nil {
		t.Fatal(err)
	}
	// The fifo is open here, so that nobody has to wait for anybody to open it.
	fifo, err := os.OpenFile(opens, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close() //nolint:errcheck // nothing more is written
	path := shell(t, folder, "leaving", "(read x <"+opens+") </dev/null >/dev/null 2>&1 & exit 0")
	at := hereOf(t)
	own := newGuard(at, "x", time.Second)
	p := &process{place: at, guard: own}
	if ran, err := p.run(t.Context(), program{path: path}); !ran || err != nil {
		t.Fatalf("it ran: %t, error %v", ran, err)
	}
	hasty := newGuard(at, "x", 0)
	if _, err := hasty.take(t.Context()); !errors.Is(err, ErrLocked) {
		t.Errorf("while what it has started lives: got error %v, want %v", err, ErrLocked)
	}
	begun := filepath.Join(folder, "begun")
	ran, err := (&process{place: at, guard: hasty}).run(t.Context(), program{path: shell(t, folder, "next", ">"+begun)})
	if ran || !errors.Is(err, ErrLocked) {
		t.Errorf("the next program ran: %t, error %v, want %v", ran, err, ErrLocked)
	}
	if _, err := os.Stat(begun); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the next program was started: %v", err)
	}
	if _, err := fifo.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	own.wait = 10 * time.Second
	held, err := own.take(t.Context())
	if err != nil {
		t.Fatalf("once it has ended: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if got := openOnes(t, lock); got != 0 {
		t.Errorf("the lock is open %d times, want never", got)
	}
}

// openOnes counts how often this process has a file open.
func openOnes(t *testing.T, path string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if at, err := os.Readlink(fd); err == nil && at == path {
			n++
		}
	}
	return n
}

// talkers puts programs of each flavour and family before all others which write down how
// they are called, and what they read, to the file said in their folder.
func talkers(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, flavour := range []Flavour{Legacy, NFT} {
			shell(t, folder, fmt.Sprintf("%s-%s-save", name, flavour), "exit 0")
			shell(t, folder, fmt.Sprintf("%s-%s-restore", name, flavour), `(echo "$0 $@"; cat) >>`+folder+"/said")
		}
		shell(t, folder, name+"-save", "exit 0")
		shell(t, folder, name+"-restore", `[ "$1" = --version ] && echo 'v1.8.9 (nf_tables)' && exit; (echo "$0 $@"; cat) >>`+folder+"/said")
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	return folder
}

// What iptables-restore is called with: the time to wait for the lock in whole seconds, and
// the script on its input.
func TestRestoreIsCalled(t *testing.T) {
	OwnLock(t)
	folder := talkers(t)
	at := hereOf(t)
	var want strings.Builder
	guards := map[int64]bool{}
	for _, c := range []struct {
		identity string
		flavour  Flavour
		wait     time.Duration
		seconds  string
	}{{"vipkit", NFT, 1999 * time.Millisecond, "1"}, {"other", Legacy, 7 * time.Second, "7"}, {"third", Default, time.Minute, "60"}} {
		for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
			o, err := Options{Identity: backends.Identity{Name: c.identity}, Flavour: c.flavour, LockWait: c.wait}.complete()
			if err != nil {
				t.Fatal(err)
			}
			p, err := findPrograms(t.Context(), &o, family, at)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.restore(t.Context(), []byte("*nat\nCOMMIT\n")); err != nil {
				t.Fatal(err)
			}
			stem := map[v1.IPFamily]string{v1.IPv4Protocol: "iptables", v1.IPv6Protocol: "ip6tables"}[family]
			registry := strings.Replace(stem, "tables", "_tables_names", 1)
			stem += strings.TrimSuffix("-"+string(c.flavour), "-")
			flavour := map[Flavour]Flavour{Legacy: Legacy, NFT: NFT, Default: NFT}[c.flavour] // as it says
			fmt.Fprintf(&want, "%s/%s-restore --noflush -w %s\n*nat\nCOMMIT\n", folder, stem, c.seconds)
			if p.saver != filepath.Join(folder, stem+"-save") || p.flavour != flavour || p.registry != registry || p.process.guard.wait != c.wait {
				t.Errorf("%s %s: got %s, flavour %q, tables in %s, the guard waits %v", c.identity, family, p.saver, p.flavour, p.registry, p.process.guard.wait)
			}
			guards[p.process.guard.at] = true
		}
	}
	got, err := os.ReadFile(filepath.Join(folder, "said"))
	if diff := cmp.Diff(want.String(), string(got)); diff != "" || err != nil {
		t.Errorf("what was called: %v (-want +got):\n%s", err, diff)
	}
	if len(guards) != 6 {
		t.Errorf("%d guards, want one of each identity and family", len(guards))
	}
}

// How a program ends, in the words that others act upon.
func TestRunTellsHowItEnded(t *testing.T) {
	OwnLock(t)
	folder, at := t.TempDir(), hereOf(t)
	p := &programs{process: process{place: at, guard: newGuard(at, "x", time.Second)}, wait: "1"}
	p.restorer = filepath.Join(folder, "missing")
	ran, err := p.process.run(t.Context(), program{path: p.restorer})
	if ran || !errors.Is(err, backends.ErrUnavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: it ran: %t, error %v", ran, err)
	}
	p.restorer = shell(t, folder, "failing", "echo 'iptables-restore: line 3 failed' >&2; exit 1")
	err = p.restore(t.Context(), nil)
	if stop, ok := errors.AsType[*stopError](err); !ok || stop.line != 3 {
		t.Errorf("failing: got error %v, want one about line 3", err)
	}
	p.restorer = shell(t, folder, "ending", "exit 0")
	if err := p.restore(t.Context(), nil); err != nil {
		t.Errorf("ending: got error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.restore(ctx, nil); !errors.Is(err, context.Canceled) || errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("stopped before it began: got error %v, want %v, and that nothing is lost", err, context.Canceled)
	}
}

// A guard that others hold is waited for as long as it says, whoever asks how often.
func TestGuardGivesUp(t *testing.T) {
	lock := OwnLock(t)
	own := newGuard(&place{inode: 1}, "x", 4*retry)
	held, err := own.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close() //nolint:errcheck // nothing was written
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := own.take(ctx); !errors.Is(err, ErrLocked) {
		t.Errorf("got error %v, want %v", err, ErrLocked)
	}
	if got := openOnes(t, lock); got != 1 {
		t.Errorf("the lock is open %d times, want once", got)
	}
}
