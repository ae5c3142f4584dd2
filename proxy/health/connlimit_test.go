package health

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// A client that holds very many connections gets a bounded number, and does not block others.
func TestConnLimit(t *testing.T) {
	const limit, held = 20, 100
	c := newConnLimit(limit)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "here") // The client notices a truncated response.
	}))
	server.Config.ConnState = c.note
	server.Start()
	defer server.Close()
	var all []net.Conn
	for i := range held {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		testenv.NoError(t, err)
		defer conn.Close() //nolint:errcheck // nothing was written
		all = append(all, conn)
		if i%10 != 0 {
			continue
		}
		response, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatalf("with %d connections held: %v", i+1, err)
		}
		text, err := io.ReadAll(response.Body)
		if err != nil || string(text) != "here" {
			t.Errorf("with %d connections held: got response %q and error %v, want \"here\"", i+1, text, err)
		}
		_ = response.Body.Close() // It was read to the end.
	}
	for i, conn := range all[:held-limit] {
		testenv.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
		if n, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Fatalf("connection %d: got %d bytes and error %v, want its end", i, n, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.conns) > limit {
		t.Errorf("got %d connections, want at most %d", len(c.conns), limit)
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
