package xtables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/legacytables"
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

// The end of a program is reported as an error that callers act on.
func TestRunExplainsFailures(t *testing.T) {
	t.Parallel()
	folder, at := t.TempDir(), mustNamespace(t)
	p := &programs{namespace: at, wait: "1"}
	p.restorer = filepath.Join(folder, "missing")
	ran, err := p.run(t.Context(), nil, nil, p.restorer)
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

// If the context ends, the children of a program are killed, too: none of them commits later.
func TestChildrenAreKilled(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	output := filepath.Join(folder, "output")
	testenv.NoError(t, unix.Mkfifo(output, 0o600))
	p := &programs{namespace: mustNamespace(t), restorer: shell(t, folder, "wrapper", "sleep 10 >"+output+" & wait"), wait: "1"}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.restore(ctx, nil) }()
	child, err := os.Open(output) // this waits for the child
	cancel()
	testenv.NoError(t, err)
	defer child.Close() //nolint:errcheck // nothing was written
	if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("restore: got error %v, want %v and %v", err, context.Canceled, proxy.ErrDataplaneLost)
	}
	testenv.NoError(t, child.SetReadDeadline(time.Now().Add(outputWait)))
	if _, err := child.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("output of the child: got error %v, want %v, as the child is killed", err, io.EOF)
	}
}

// scripted returns a kernel whose programs are scripts.
func scripted(t *testing.T, saver, restorer string) *kernel {
	t.Helper()
	return &kernel{
		Family: Family{Family: v1.IPv4Protocol}, names: newNames(), around: func(run func() error) error { return run() },
		watch:    &legacyWatch{look: func() map[Table]legacytables.Info { return nil }},
		programs: programs{namespace: mustNamespace(t), flavour: NFT, wait: "1", saver: saver, restorer: restorer},
	}
}

// If the kernel refuses to remove a chain, because a rule that no program lists leads to it, the other chains go.
func TestRefusedChainStaysAlone(t *testing.T) {
	t.Parallel()
	const count, refused = 40, 17
	folder := t.TempDir()
	name := func(i int) string {
		return fmt.Sprintf("VIPKIT-SVC-%016s", strings.Repeat(string(rune('A'+i/26)), 15)+string(rune('A'+i%26)))
	}
	removed := filepath.Join(folder, "removed")
	k := scripted(t, "", shell(t, folder, "restore", "cat >"+folder+"/input; [ $(grep -c '^[*]' "+folder+"/input) = 1 ] || exit 9; grep -q 'X "+name(refused)+"' "+folder+"/input && "+
		"echo 'line 2: CHAIN_DEL failed (Device or resource busy)' >&2 && exit 4; grep X "+folder+"/input >>"+removed+"; exit 0"))
	var chains []chainRef
	for i := range count {
		chains = append(chains, chainRef{[...]Table{NAT, Filter, Mangle}[i%3], name(i)}) // Each table commits by itself.
	}
	if err := k.removeChains(t.Context(), &existing{}, chains); !isRefusal(err) {
		t.Errorf("removal: got error %v, want a refusal", err)
	}
	text, err := os.ReadFile(removed)
	testenv.NoError(t, err)
	for i := range count {
		if got := strings.Contains(string(text), "-X "+name(i)+"\n"); got == (i == refused) {
			t.Errorf("chain %d: removed: got %t, want %t", i, got, i != refused)
		}
	}
	// The kernel may refuse each chain: then the programs are limited.
	k.programs.restorer = shell(t, folder, "refuse", "echo >>"+folder+"/refusals; exit 4")
	if err := k.removeChains(t.Context(), &existing{}, append(slices.Clone(chains), chains...)); !isRefusal(err) {
		t.Errorf("removal of chains that all are refused: got error %v, want a refusal", err)
	}
	all, err := os.ReadFile(folder + "/refusals")
	testenv.NoError(t, err)
	if got := len(all); got > 3*2*removalTries {
		t.Errorf("programs that tried to remove chains: got %d, want at most %d", got, 3*2*removalTries)
	}
}

// The input of programs is a file that nobody can execute: some kernels refuse others.
func TestInputCannotBeExecuted(t *testing.T) {
	t.Parallel()
	f, err := file([]byte("*nat\n"))
	testenv.NoError(t, err)
	defer f.Close()       //nolint:errcheck // it is only in memory
	const sealExec = 0x20 // F_SEAL_EXEC
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	testenv.NoError(t, err)
	text, err := io.ReadAll(f)
	testenv.NoError(t, err)
	if seals&sealExec == 0 || string(text) != "*nat\n" {
		t.Errorf("input: got %q with seals %#x, want %q and %#x", text, seals, "*nat\n", sealExec)
	}
}

// An error of the removal of chains names its cause: rules of other programs are it only after a refusal.
func TestCleanupTellsWhy(t *testing.T) {
	t.Parallel()
	for says, want := range map[string]bool{"line 3 failed": true, "Memory allocation problem": false} {
		folder := t.TempDir()
		k := scripted(t, shell(t, folder, "save", "printf '*nat\\n:VIPKIT-SERVICES - [0:0]\\nCOMMIT\\n'"),
			shell(t, folder, "restore", "echo 'iptables-restore: "+says+"' >&2; exit 4"))
		err := k.Cleanup(t.Context())
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "rules of other programs") != want {
			t.Errorf("Cleanup: got error %v, want one that contains %q, and says that rules of other programs jump there: %t", err, says, want)
		}
	}
}
