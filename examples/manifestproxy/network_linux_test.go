package main

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// The addresses of the demo's Service and of its endpoints.
const (
	virtualIP = "10.96.0.10:80"
	nodeIP    = agenttest.NodeIP
	nodePort  = nodeIP + ":30080"
	endpoint1 = agenttest.Pod1IP + ":8080"
	endpoint2 = agenttest.Pod2IP + ":8080"
)

// network is a node with the endpoints of the demo.
type network struct{ *agenttest.Node }

func newNetwork(t *testing.T) network {
	t.Helper()
	return network{agenttest.NewNode(t, 8080, 8053)}
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

// TestLoopback checks that node ports answer at loopback addresses, beside backends of the kernel and of
// the program, and that a port that another program has is in the log until it is free.
func TestLoopback(t *testing.T) {
	t.Parallel()
	const local, metrics = "127.0.0.1:30080", "127.0.0.1:9102"
	for _, backend := range []string{"nftables", "userspace"} {
		n := newNetwork(t)
		taken, err := n.Listen(t.Context(), "tcp", local)
		testenv.NoError(t, err)
		p := n.start(t, append(flags("demo", "-backend", backend, "-nodeport-addresses", "localhost"), "-metrics-bind-address", metrics)...)
		p.Await(`level=ERROR msg="node port not served at loopback addresses"`, "object=default/web", local)
		p.AwaitPage("http://"+metrics+"/debug/services", "Served with limits", local)
		testenv.NoError(t, taken.Close())
		p.Await(`level=INFO msg="node port not served at loopback addresses resolved"`, "object=default/web")
		on := *n.Node
		on.Client = n.NS
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if _, err := on.Ask(t.Context(), local); err == nil {
				break
			} else if time.Now().After(end) {
				t.Fatalf("%s: node port at %s: got error %v, want an answer", backend, local, err)
			}
		}
		p.Terminate(stopped)
	}
}
