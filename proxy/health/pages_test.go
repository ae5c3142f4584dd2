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
)

// Pages are served like the health checks: beside them, and once their address is
// free.
func TestPages(t *testing.T) {
	ports := freePorts(t, 2)
	free, taken := at("127.0.0.1", ports[0]), at("127.0.0.1", ports[1])
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", taken)
	if err != nil {
		t.Fatal(err)
	}
	page := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	}
	w := run(t, Options{Pages: map[string]http.Handler{free: page("one"), taken: page("two")}})
	if got := next(t, w.reports); !strings.HasPrefix(got, taken+": listen tcp") {
		t.Errorf("reported is %q, want the address that is taken", got)
	}
	w.wantEvents(t, "listen "+free)
	if got := get(t, free); !strings.HasSuffix(got, "\none") {
		t.Errorf("the page is %q, want one", got)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	w.wantEvents(t, "listen "+taken)
	if got, want := next(t, w.reports), taken+": <nil>"; got != want {
		t.Errorf("reported is %q, want %q", got, want)
	}
	if got := get(t, taken); !strings.HasSuffix(got, "\ntwo") {
		t.Errorf("the page is %q, want two", got)
	}
	w.stop()
	w.wantEvents(t, "close "+free, "close "+taken)
}

// Where there is no handler, there are no pages; not those of the whole process, such as
// profiles, which anybody may have registered.
func TestPagesOfNobody(t *testing.T) {
	before := http.DefaultServeMux
	defer func() { http.DefaultServeMux = before }()
	http.DefaultServeMux = http.NewServeMux()
	http.HandleFunc("/any/path", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") })
	address := at("127.0.0.1", freePorts(t, 1)[0])
	w := run(t, Options{Pages: map[string]http.Handler{address: nil}})
	w.wantEvents(t, "listen "+address)
	if got := get(t, address); !strings.HasPrefix(got, "404") {
		t.Errorf("the page is %q, want none", got)
	}
	w.stop()
	w.wantEvents(t, "close "+address)
}

// Nobody holds a connection for long, or sends much.
func TestLimitsOfServers(t *testing.T) {
	s := newSites(&net.ListenConfig{}, nil, 1<<20)
	defer s.close()
	s.set(types.NamespacedName{}, http.NotFoundHandler(), []place{{"tcp", "127.0.0.1:0"}})
	s.open(context.WithoutCancel(t.Context()))
	for _, d := range s.sites[types.NamespacedName{}].doors {
		got := [...]time.Duration{d.ReadHeaderTimeout, d.ReadTimeout, d.WriteTimeout, d.IdleTimeout}
		if want := [...]time.Duration{5 * time.Second, 10 * time.Second, 10 * time.Second, time.Minute}; got != want || d.MaxHeaderBytes != 16<<10 {
			t.Errorf("timeouts %v and %d bytes of headers, want %v and 16 KiB", got, d.MaxHeaderBytes, want)
		}
		return
	}
	t.Error("nothing is open")
}
