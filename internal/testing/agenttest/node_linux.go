package agenttest

import (
	"context"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
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

// NewNode makes a node, which is removed when the test ends, with servers at ports of all pods.
func NewNode(t testing.TB, ports ...uint16) *Node {
	t.Helper()
	l := lab.New(t,
		lab.Host{Name: "node"},
		lab.Host{Name: "clients", Uplink: "node", Addrs: "192.0.2.10/24", Gateway: NodeIP + "/24"},
		lab.Host{Name: "pods", Uplink: "node", Addrs: Pod1IP + "/24 " + Pod2IP + "/32", Gateway: "10.244.1.1/24", Behind: "10.244.2.0/24", Serve: ports},
	)
	return &Node{l.NS("node"), l.NS("clients"), l.NS("pods")}
}

// Ask makes a TCP connection from the client and returns the answer of the server, which has the address
// of the endpoint. It fails after 20 seconds, or when ctx ends.
func (n *Node) Ask(ctx context.Context, address string) (lab.Answer, error) {
	return lab.Ask(ctx, n.Client, "tcp", address)
}
