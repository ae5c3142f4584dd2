package agent

import (
	"context"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestLogCannotBeWritten checks that the program serves although the reader of its log has
// ended, or the disk is full.
func TestLogCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*world) *agenttest.Program{
		"reader has ended": func(w *world) *agenttest.Program {
			p := w.start()
			p.Await("msg=serving")
			p.CloseLog()
			return p
		},
		"disk full": func(w *world) *agenttest.Program {
			cmd := agenttest.Command(t, "-config", w.config, "-hostname-override", "node-1")
			cmdline := exec.Command("sh", append([]string{"-c", `exec "$0" "$@" 2>/dev/full`}, cmd.Args...)...)
			return agenttest.Start(t, w.node.NS, patience, cmdline)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "mode: nftables\n")
			p := start(w)
			w.wantAnswer(virtualIP, "8080")
			bad := service("bad", "10.96.0.66")
			bad.Spec.ExternalIPs = []string{"nonsense"} // which is logged
			w.api.put("services", bad)
			w.api.put("endpointslices", slice("web", 8081))
			w.wantAnswer(virtualIP, "8081")
			p.Signal(syscall.SIGTERM)
			if status := p.Wait(); status != 0 {
				t.Errorf("status: got %d, want 0", status)
			}
		})
	}
}

// TestTwoPrograms runs two programs on one node, as in a rolling update. Neither may undo the
// writes of the other, and the second must listen at the ports when the first has ended.
// It counts the writes of two programs that learn of a change at the same time, so it is alone.
func TestTwoPrograms(t *testing.T) {
	w := newWorld(t, "mode: nftables\n")
	first := w.start("-v", "1")
	first.Await("msg=serving")
	first.AwaitPage(healthz+"/healthz", "200 OK")
	first.AwaitPage(metrics+"/proxyMode", "200 OK")
	second := w.start("-v", "1")
	second.AwaitEach([]string{"HTTP server not listening", "at=healthz", "address already in use"}, []string{"HTTP server not listening", "at=127.0.0.1:10249"},
		[]string{"msg=serving", "operations=0 "})
	w.api.put("endpointslices", slice("web", 8081))
	w.wantAnswer(virtualIP, "8081")
	second.Await("msg=sync", "changed=1")
	first.Terminate(stopped)
	wantWrites(t, first, 2)
	second.AwaitEach([]string{"HTTP server problem resolved", "at=healthz"}, []string{"HTTP server problem resolved", "at=127.0.0.1:10249"})
	second.AwaitPage(healthz+"/healthz", "200 OK")
	w.api.put("endpointslices", slice("web", 8080))
	w.wantAnswer(virtualIP, "8080")
	second.Terminate(stopped)
	wantWrites(t, second, 2)
}

// wantWrites checks how often a program that has ended wrote to the kernel: at its start and
// for each change, but not to undo the writes of the other program.
func wantWrites(t *testing.T, p *agenttest.Program, most int) {
	t.Helper()
	if writes := p.Count("msg=sync") - p.Count("msg=sync", "operations=0 "); writes > most {
		t.Errorf("syncs with writes: got %d, want at most %d", writes, most)
	}
}

// TestClientsThatDoNotRead checks that clients that request the metrics many times and do not
// read them do not block other clients.
func TestClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "mode: nftables\nmetricsBindAddress: 0.0.0.0\n")
	p := w.start()
	p.AwaitPage(metrics+"/metrics", "200 OK")
	const request = "GET /metrics HTTP/1.1\r\nHost: a\r\n"
	dial := func() net.Conn {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, err := w.node.Client.Dial(ctx, "tcp", agenttest.NodeIP+":10249")
		testenv.NoError(t, err)
		return c
	}
	for range 3 * maxAtOnce {
		c := dial()
		defer c.Close() //nolint:errcheck // its data is not read
		if _, err := io.WriteString(c, strings.Repeat(request+"\r\n", 300)); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		c := dial()
		_, err := io.WriteString(c, request+"Connection: close\r\n\r\n")
		testenv.NoError(t, err)
		answer, err := io.ReadAll(c)
		if text := string(answer); err != nil || !strings.Contains(text, " 200 OK") || !strings.Contains(text, "vipkit_syncs_total") {
			t.Fatalf("response: got error %v, %.200q, want the metrics", err, text)
		}
		_ = c.Close() // It was read to the end.
	}
	p.Terminate(stopped)
}
