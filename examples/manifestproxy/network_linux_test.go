package main

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
)

const (
	// The addresses of the demo's Service and of its endpoints.
	virtualIP = "10.96.0.10:80"
	nodeIP    = agenttest.NodeIP
	nodePort  = nodeIP + ":30080"
	endpoint1 = agenttest.Pod1IP + ":8080"
	endpoint2 = agenttest.Pod2IP + ":8080"
	// patience bounds every wait.
	patience = 2 * time.Minute
	// stopped is in the last line of a program that ends without error.
	stopped = "stopped; the rules stay"
)

// network is a node with the endpoints of the demo.
type network struct{ *agenttest.Node }

func newNetwork(t *testing.T) network {
	t.Helper()
	return network{agenttest.NewNode(t, 8080, 8053)}
}

// start starts the program. It ends with the test at the latest.
func (n network) start(t *testing.T, flags ...string) *agenttest.Program {
	t.Helper()
	return agenttest.Start(t, n.NS, patience, agenttest.Command(t, flags...))
}

// wantRun runs the program to its end. It checks the status, and that the log has one line
// with all parts.
func (n network) wantRun(t *testing.T, flags []string, status int, parts ...string) *agenttest.Program {
	t.Helper()
	p := n.start(t, flags...)
	if got := p.Wait(); got != status {
		t.Errorf("status: got %d, want %d", got, status)
	}
	if got := p.Count(parts...); got != 1 {
		t.Errorf("log lines with %q: got %d, want one", parts, got)
	}
	return p
}

// wantAnswers checks that exactly these servers reply at an address. With two of them, the
// chance that one gets none of the connections is one in 2^39.
func (n network) wantAnswers(t *testing.T, address string, want ...string) {
	t.Helper()
	var got []string
	for range 40 {
		answer, err := n.Ask(t.Context(), address)
		if err != nil {
			t.Fatalf("connection to %s: %v", address, err)
		}
		if server := answer.Own.String(); !slices.Contains(got, server) {
			got = append(got, server)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("servers that reply at %s: got %v, want %v", address, got, want)
	}
}

// wantNoConnection checks that no connection to the Service succeeds within two seconds.
func (n network) wantNoConnection(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	answer, err := n.Ask(ctx, virtualIP)
	if _, ok := errors.AsType[*net.OpError](err); !ok {
		t.Errorf("connection to %s: got answer %+v, error %v, want a network error", virtualIP, answer, err)
	}
}
