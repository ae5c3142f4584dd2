package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// Where the manifest of the demo can be reached, and who answers.
const (
	virtualIP = "10.96.0.10:80"
	nodeIP    = "192.0.2.1"
	nodePort  = nodeIP + ":30080"
	endpoint1 = "10.244.1.11:8080"
	endpoint2 = "10.244.2.11:8080"
)

// network is a node with a client on the one side and the endpoints of the demo
// on the other, where servers answer with the address that they were asked at.
type network struct {
	node, client, pods *netns.NS
}

func newNetwork(t *testing.T) network {
	t.Helper()
	n := network{node: netnstest.NewNS(t), client: netnstest.NewNS(t), pods: netnstest.NewNS(t)}
	if err := n.wire(); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{endpoint1, endpoint2} {
		serve(t, n.pods, at)
	}
	return n
}

func (n network) wire() error {
	prefix := netip.MustParsePrefix
	defaultRoute := func(via string) netns.Route {
		return netns.Route{To: prefix("0.0.0.0/0"), Link: "eth0", Via: netip.MustParseAddr(via)}
	}
	if err := errors.Join(
		netns.Link(netns.End{NS: n.node, Name: "clients"}, netns.End{NS: n.client, Name: "eth0"}),
		netns.Link(netns.End{NS: n.node, Name: "pods"}, netns.End{NS: n.pods, Name: "eth0"}),
	); err != nil {
		return err
	}
	return errors.Join(
		n.node.Forward(),
		n.node.AddAddress("clients", prefix(nodeIP+"/24")),
		n.node.AddAddress("pods", prefix("10.244.1.1/24")),
		n.node.AddRoute(netns.Route{To: prefix("10.244.2.0/24"), Link: "pods"}),
		n.client.AddAddress("eth0", prefix("192.0.2.10/24")),
		n.client.AddRoute(defaultRoute(nodeIP)),
		n.pods.AddAddress("eth0", prefix("10.244.1.11/24")),
		n.pods.AddAddress("eth0", prefix("10.244.2.11/32")),
		n.pods.AddRoute(defaultRoute("10.244.1.1")),
	)
}

// serve answers each connection with the address that it was made to.
func serve(t *testing.T, ns *netns.NS, at string) {
	t.Helper()
	l, err := ns.Listen(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // The listener has been closed.
			}
			_, _ = fmt.Fprint(c, at) // The client notices what is missing.
			_ = c.Close()
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		served.Wait()
	})
}

// ask makes a connection from the client and gives what the server says.
func (n network) ask(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := n.client.Dial(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // It was for reading only.
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// wantAnswers checks that just these servers answer at an address. With two of
// them, the chance that one gets none of the connections is one in 2^39.
func (n network) wantAnswers(t *testing.T, address string, want ...string) {
	t.Helper()
	var got []string
	for range 40 {
		answer, err := n.ask(t.Context(), address)
		if err != nil {
			t.Fatalf("connection to %s: %v", address, err)
		}
		if !slices.Contains(got, answer) {
			got = append(got, answer)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("at %s answer %v, wanted %v", address, got, want)
	}
}

// wantNobody checks that nobody answers at an address.
func (n network) wantNobody(t *testing.T, address string) {
	t.Helper()
	answer, err := n.ask(t.Context(), address)
	if _, ok := errors.AsType[*net.OpError](err); !ok {
		t.Errorf("at %s answers %q (error %v), wanted that nobody does", address, answer, err)
	}
}
