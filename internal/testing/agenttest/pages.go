package agenttest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Dial makes a connection, as [net.Dialer.DialContext] does.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// AwaitPage gets a page, again and again, until status and body together contain all parts. If
// ctx ends first, the test fails. No connection outlives the call.
func AwaitPage(ctx context.Context, t testing.TB, dial Dial, url string, parts ...string) {
	t.Helper()
	var last string
	for {
		text, err := Page(ctx, dial, url)
		if err == nil && hasAll(text, parts) {
			return
		}
		if err == nil {
			last = text
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: got no page with %q; the last one (error %v):\n%s", url, parts, err, last)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Page gets a page: its status and its body. No connection outlives the call.
func Page(ctx context.Context, dial Dial, url string) (text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	request.Close = true
	// An http.Client might dial in the background after the request has ended.
	c, err := dial(ctx, "tcp", request.URL.Host)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	end, _ := ctx.Deadline()
	if err := errors.Join(c.SetDeadline(end), request.Write(c)); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	return response.Status + "\n" + string(body), errors.Join(err, response.Body.Close())
}

func hasAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
