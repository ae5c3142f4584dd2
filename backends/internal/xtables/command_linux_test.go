package xtables

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
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

// An error of the removal of chains names its cause: rules of other programs are it only after a refusal.
func TestCleanupTellsWhy(t *testing.T) {
	t.Parallel()
	for says, want := range map[string]bool{"line 3 failed": true, "Memory allocation problem": false} {
		folder := t.TempDir()
		k := &kernel{Family: Family{Family: v1.IPv4Protocol}, names: newNames(), watch: &legacyWatch{look: func() map[Table]legacytables.Info { return nil }}}
		k.programs = programs{
			namespace: mustNamespace(t), flavour: NFT, wait: "1",
			saver:    shell(t, folder, "save", "printf '*nat\\n:VIPKIT-SERVICES - [0:0]\\nCOMMIT\\n'"),
			restorer: shell(t, folder, "restore", "echo 'iptables-restore: "+says+"' >&2; exit 4"),
		}
		err := k.Cleanup(t.Context())
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "rules of other programs") != want {
			t.Errorf("Cleanup: got error %v, want one that contains %q, and says that rules of other programs jump there: %t", err, says, want)
		}
	}
}
