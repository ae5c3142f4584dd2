package agent

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestChangedFile checks with the real program that a changed file is applied without a new start where
// that is safe, that errors change nothing, and that other changes end the program without failure,
// while the Service works.
func TestChangedFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "mode: nftables\nlogging: {format: json}\n")
	p := w.start()
	p.Await(`"msg":"serving"`, `"level":"INFO"`)
	w.wantAnswer(virtualIP, "8080")
	change := func(pairs ...string) {
		t.Helper()
		text, err := os.ReadFile(w.config)
		testenv.NoError(t, err)
		testenv.NoError(t, os.WriteFile(w.config, []byte(strings.NewReplacer(pairs...).Replace(string(text))), 0o600))
	}
	change("tcpEstablishedTimeout: 20h", "tcpEstablishedTimeout: 19h", "format: json", "format: json, verbosity: 1")
	p.Await(`"msg":"configuration file applied"`, "conntrack.tcpEstablishedTimeout, logging.verbosity")
	if got := strings.TrimSpace(runIn(t, w.node.NS, "cat", "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established")); got != "68400" {
		t.Errorf("nf_conntrack_tcp_timeout_established: got %s, want 68400", got)
	}
	w.api.put("endpointslices", slice("web", 8081))
	p.Await(`"v":1,"msg":"sync"`)

	change("mode: nftables", "mode: fast")
	p.Signal(syscall.SIGHUP)
	p.Await(`"level":"ERROR"`, "configuration file not applied", `mode \"fast\"`)
	w.wantAnswer(virtualIP, "8081")

	change("mode: fast", "mode: nftables\nnodePortAddresses: [all]")
	p.Signal(syscall.SIGHUP)
	p.Await("ended, to be started again", "nodePortAddresses")
	if status := p.Wait(); status != 0 {
		t.Errorf("got status %d, want 0", status)
	}
	w.wantAnswer(virtualIP, "8081")
	p = w.start()
	p.Await(`"msg":"serving"`)
}

// TestFollowPipe checks that a pipe in place of the file does not block the follower, which could not end.
func TestFollowPipe(t *testing.T) {
	t.Parallel()
	f := follow(t, unchanged)
	testenv.NoError(t, errors.Join(os.Remove(f.path), syscall.Mkfifo(f.path, 0o600)))
	if got := f.look(t, 3); !strings.Contains(got, "not a regular file") {
		t.Errorf("a pipe: got log\n%s\nwant that it is no regular file", got)
	}
}
