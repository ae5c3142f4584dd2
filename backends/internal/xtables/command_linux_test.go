package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// shell writes a shell script that can be run as a program.
func shell(t *testing.T, folder, name, script string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	testenv.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	return path
}

func mustNamespace(t *testing.T) *netns.NS {
	t.Helper()
	at, err := netns.Current()
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = at.Close() }) // nothing was written
	return at
}

// A program is killed with the thread that started it, and is not waited for without limit.
func TestCommand(t *testing.T) {
	t.Parallel()
	cmd := program{path: "/bin/true"}.command(t.Context())
	if a := cmd.SysProcAttr; cmd.WaitDelay != outputWait || !a.Setpgid || a.Pdeathsig != unix.SIGKILL {
		t.Errorf("command: got WaitDelay %v, Setpgid %t, Pdeathsig %v; want %v, true and %v", cmd.WaitDelay, a.Setpgid, a.Pdeathsig, outputWait, unix.SIGKILL)
	}
}

// The end of a program's output is kept, however it is written.
func TestTail(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	var got tail
	var all []byte
	for range 50 {
		piece := bytes.Repeat([]byte{byte('a' + r.IntN(26))}, r.IntN(3*tailSize)/(1+r.IntN(50)))
		if n, err := got.Write(piece); n != len(piece) || err != nil {
			t.Fatalf("Write: got %d, %v, want %d and no error", n, err, len(piece))
		}
		all = append(all, piece...)
		testenv.Same(t, string(all[max(0, len(all)-tailSize):]), string(got.kept), "kept after %d bytes", len(all))
	}
}

// recordingStubs installs stubs of the programs of each flavour and family first in PATH.
// They write their arguments and input to the file calls in their folder.
func recordingStubs(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, flavour := range []Flavour{Legacy, NFT} {
			shell(t, folder, fmt.Sprintf("%s-%s-save", name, flavour), "exit 0")
			shell(t, folder, fmt.Sprintf("%s-%s-restore", name, flavour), `(echo "$0 $@"; cat) >>`+folder+"/calls")
		}
		shell(t, folder, name+"-save", "exit 0")
		shell(t, folder, name+"-restore", `[ "$1" = --version ] && echo 'v1.8.9 (nf_tables)' && exit; (echo "$0 $@"; cat) >>`+folder+"/calls")
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	return folder
}

// iptables-restore is called with the time to wait for the xtables lock in whole seconds, and
// reads the script from its input.
func TestRestoreIsCalled(t *testing.T) {
	folder := recordingStubs(t)
	at := mustNamespace(t)
	var want strings.Builder
	for _, c := range []struct {
		identity string
		flavour  Flavour
		wait     time.Duration
		seconds  string
	}{{"vipkit", NFT, 1999 * time.Millisecond, "1"}, {"other", Legacy, 7 * time.Second, "7"}, {"third", Default, time.Minute, "60"}} {
		for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
			o, err := Options{Flavour: c.flavour, LockWait: c.wait}.Complete()
			testenv.NoError(t, err)
			p, err := findPrograms(t.Context(), &Config{Options: o, Names: newNames(c.identity)}, family, at)
			testenv.NoError(t, err)
			testenv.NoError(t, p.restore(t.Context(), []byte("*nat\nCOMMIT\n")))
			stem := map[v1.IPFamily]string{v1.IPv4Protocol: "iptables", v1.IPv6Protocol: "ip6tables"}[family]
			stem += strings.TrimSuffix("-"+string(c.flavour), "-")
			flavour := map[Flavour]Flavour{Legacy: Legacy, NFT: NFT, Default: NFT}[c.flavour] // as the stub's --version
			fmt.Fprintf(&want, "%s/%s-restore --noflush -w %s\n*nat\nCOMMIT\n", folder, stem, c.seconds)
			if p.saver != filepath.Join(folder, stem+"-save") || p.flavour != flavour || p.family != family {
				t.Errorf("%s %s: got %s, flavour %q, tables of %s", c.identity, family, p.saver, p.flavour, p.family)
			}
		}
	}
	got, err := os.ReadFile(filepath.Join(folder, "calls"))
	if diff := cmp.Diff(want.String(), string(got)); diff != "" || err != nil {
		t.Errorf("calls: error %v (-want +got):\n%s", err, diff)
	}
}

// The end of a program is reported as an error that callers act on.
func TestRunExplainsFailures(t *testing.T) {
	t.Parallel()
	folder, at := t.TempDir(), mustNamespace(t)
	p := &programs{process: process{namespace: at}, wait: "1"}
	p.restorer = filepath.Join(folder, "missing")
	ran, err := p.process.run(t.Context(), program{path: p.restorer})
	if ran || !errors.Is(err, backends.ErrUnavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing program: got ran: %t, error %v, want false and %v", ran, err, backends.ErrUnavailable)
	}
	p.restorer = shell(t, folder, "failing", "echo 'iptables-restore: line 3 failed' >&2; exit 1")
	err = p.restore(t.Context(), nil)
	if !isRefusal(err) {
		t.Errorf("failing: got error %v, want a refusal", err)
	}
	p.restorer = shell(t, folder, "ending", "exit 0")
	if err := p.restore(t.Context(), nil); err != nil {
		t.Errorf("ending: got error %v, want none", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.restore(ctx, nil); !errors.Is(err, context.Canceled) || errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("context ended before the start: got error %v, want %v, and not %v", err, context.Canceled, proxy.ErrDataplaneLost)
	}
}
