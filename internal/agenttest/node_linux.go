package agenttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// Addresses of a [Node] and its pods.
const (
	NodeIP = "192.0.2.1"
	Pod1IP = "10.244.1.11"
	Pod2IP = "10.244.2.11"
)

// Node is the network namespace of a node, with a client on the side of NodeIP, and pods on the
// other side.
type Node struct {
	*netns.NS
	Client, Pods *netns.NS
}

// NewNode makes a node, which is removed when the test ends.
func NewNode(t testing.TB) *Node {
	t.Helper()
	n := &Node{NS: netnstest.NewNS(t), Client: netnstest.NewNS(t), Pods: netnstest.NewNS(t)}
	testenv.NoError(t, n.wire())
	return n
}

func (n *Node) wire() error {
	prefix := netip.MustParsePrefix
	defaultRoute := func(via string) netns.Route {
		return netns.Route{To: prefix("0.0.0.0/0"), Link: "eth0", Via: netip.MustParseAddr(via)}
	}
	if err := errors.Join(
		netns.Link(netns.End{NS: n.NS, Name: "clients"}, netns.End{NS: n.Client, Name: "eth0"}),
		netns.Link(netns.End{NS: n.NS, Name: "pods"}, netns.End{NS: n.Pods, Name: "eth0"}),
	); err != nil {
		return err
	}
	return errors.Join(
		n.Forward(),
		n.AddAddress("clients", prefix(NodeIP+"/24")),
		n.AddAddress("pods", prefix("10.244.1.1/24")),
		n.AddRoute(netns.Route{To: prefix("10.244.2.0/24"), Link: "pods"}),
		n.Client.AddAddress("eth0", prefix("192.0.2.10/24")),
		n.Client.AddRoute(defaultRoute(NodeIP)),
		n.Pods.AddAddress("eth0", prefix(Pod1IP+"/24")),
		n.Pods.AddAddress("eth0", prefix(Pod2IP+"/32")),
		n.Pods.AddRoute(defaultRoute("10.244.1.1")),
	)
}

// Serve sends a text on each TCP connection to an address of the pods, until the test ends.
func (n *Node) Serve(t testing.TB, at, text string) {
	t.Helper()
	l, err := n.Pods.Listen(t.Context(), "tcp", at)
	testenv.NoError(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // The listener has been closed.
			}
			_, _ = fmt.Fprint(c, text) // The client notices missing data.
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

// Ask makes a TCP connection from the client and returns what the server sends. It fails after
// ten seconds, or when ctx ends.
func (n *Node) Ask(ctx context.Context, address string) (string, error) {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := n.Client.Dial(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // Nothing was written.
	end, _ := ctx.Deadline()
	if err := c.SetDeadline(end); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}
