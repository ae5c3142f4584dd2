package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/vipkit/vipkit/internal/netns"
)

// answer is what a pod says: its name, and the address that it was asked from.
type answer struct {
	pod  string
	sees netip.Addr
}

// caller sends requests from a namespace.
type caller struct{ http *http.Client }

// newCaller gives a caller that makes a connection for each request, or one that
// keeps its connection. A service proxy chooses once for each connection.
func newCaller(from *netns.NS, keep bool) caller {
	return caller{&http.Client{
		Timeout: 3 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: !keep,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return from.Dial(ctx, network, address)
			},
		},
	}}
}

// close ends the connection that is kept.
func (c caller) close() { c.http.CloseIdleConnections() }

// ask sends a request to an address and port.
func (c caller) ask(ctx context.Context, to netip.AddrPort) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String(), http.NoBody)
	if err != nil {
		return answer{}, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return answer{}, err
	}
	name, peer, _ := strings.Cut(strings.TrimSpace(string(body)), " ")
	seen, err := netip.ParseAddrPort(peer)
	if err != nil {
		return answer{}, fmt.Errorf("%v answered %q: %w", to, body, err)
	}
	return answer{pod: name, sees: seen.Addr()}, nil
}

// askUntil asks, each time on a new connection, until a certain pod answers.
func (c caller) askUntil(ctx context.Context, to netip.AddrPort, name string) (answer, error) {
	const attempts = 500
	for range attempts {
		a, err := c.ask(ctx, to)
		if err != nil || a.pod == name {
			return a, err
		}
		c.close()
	}
	return answer{}, fmt.Errorf("%s should answer, but got none of %d requests", name, attempts)
}
