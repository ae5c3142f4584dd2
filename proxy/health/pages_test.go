package health

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Pages are served together with the health checks, and retried while their address is in use.
func TestPages(t *testing.T) {
	ports := freePorts(t, 2)
	free, used := at("127.0.0.1", ports[0]), at("127.0.0.1", ports[1])
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", used)
	testenv.NoError(t, err)
	page := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	}
	w := run(t, Options{Pages: map[string]http.Handler{free: page("one"), used: page("two")}})
	if got := next(t, w.reports); !strings.HasPrefix(got, used+": listen tcp") {
		t.Errorf("got report %q, want one of the address in use", got)
	}
	w.wantEvents(t, "listen "+free)
	if got := get(t, free); !strings.HasSuffix(got, "\none") {
		t.Errorf("got page %q, want \"one\"", got)
	}
	testenv.NoError(t, other.Close())
	w.wantEvents(t, "listen "+used)
	if got, want := next(t, w.reports), used+": <nil>"; got != want {
		t.Errorf("got report %q, want %q", got, want)
	}
	if got := get(t, used); !strings.HasSuffix(got, "\ntwo") {
		t.Errorf("got page %q, want \"two\"", got)
	}
	w.stop()
	w.wantEvents(t, "close "+free, "close "+used)
}

// A page without a handler is not found; http.DefaultServeMux, where any package may have
// registered profiles, is not served.
func TestPageWithoutHandler(t *testing.T) {
	before := http.DefaultServeMux
	defer func() { http.DefaultServeMux = before }()
	http.DefaultServeMux = http.NewServeMux()
	http.HandleFunc("/any/path", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") })
	address := at("127.0.0.1", freePorts(t, 1)[0])
	w := run(t, Options{Pages: map[string]http.Handler{address: nil}})
	w.wantEvents(t, "listen "+address)
	if got := get(t, address); !strings.HasPrefix(got, "404") {
		t.Errorf("got page %q, want 404", got)
	}
	w.stop()
	w.wantEvents(t, "close "+address)
}

// Servers limit the time of connections and the size of headers.
func TestLimitsOfServers(t *testing.T) {
	s := newCheckServers(&net.ListenConfig{}, nil, 1<<20)
	defer s.close()
	s.set(types.NamespacedName{}, http.NotFoundHandler(), []hostPort{{"tcp", "127.0.0.1:0"}})
	s.open(context.WithoutCancel(t.Context()))
	for _, d := range s.byName[types.NamespacedName{}].sockets {
		got := [...]time.Duration{d.ReadHeaderTimeout, d.ReadTimeout, d.WriteTimeout, d.IdleTimeout}
		if want := [...]time.Duration{5 * time.Second, 10 * time.Second, 10 * time.Second, time.Minute}; got != want || d.MaxHeaderBytes != 16<<10 {
			t.Errorf("got timeouts %v and %d bytes of headers, want %v and 16 KiB", got, d.MaxHeaderBytes, want)
		}
		return
	}
	t.Error("got no socket, want one")
}
