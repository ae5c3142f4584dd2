//go:build ipvs

package ipvsmode

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// world is a node between a client and the endpoints.
type world struct{ client, node *netns.NS }

func newWorld(t *testing.T) *world {
	t.Helper()
	addrs := ""
	for i := range podIPs(false) {
		addrs += fmt.Sprintf("%s/24 %s/64 ", podIPs(false)[i], podIPs(true)[i])
	}
	l := lab.New(t,
		lab.Host{Name: "node"},
		// With nftables, processes of the node need any route.
		lab.Host{Name: "clients", Uplink: "node", Addrs: clientIP + "/24 " + clientIP6 + "/64", Gateway: nodeIP + "/24 " + nodeIP6 + "/64", Behind: "0.0.0.0/0 ::/0"},
		lab.Host{Name: "pods", Uplink: "node", Addrs: addrs, Gateway: gatewayIP + "/24 " + gatewayIP6 + "/64", Serve: []uint16{podPort}},
	)
	return &world{l.NS("clients"), l.NS("node")}
}

// conversation is an open connection, or a flow of UDP.
type conversation struct {
	*lab.Conn

	name, first string
}

// ask returns the answer.
func (c *conversation) ask(ctx context.Context) (string, error) {
	a, err := c.Ask(ctx)
	return fmt.Sprintf("%v for %v", a.Own.Addr(), a.Client.Addr()), err
}

// goesOn checks that the same server still answers.
func (c *conversation) goesOn(t *testing.T, when string) {
	t.Helper()
	if got, err := c.ask(t.Context()); err != nil || got != c.first {
		t.Errorf("%s: connection %s: got an answer of %q, error %v, want one of %q", when, c.name, got, err, c.first)
	}
}

// open connects until the test ends, and asks once.
func open(t *testing.T, from *netns.NS, name, to string) *conversation {
	t.Helper()
	network, address, found := strings.Cut(to, "/")
	if !found {
		network, address = "tcp", to
	}
	c, err := lab.Dial(t.Context(), from, network, address)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	testenv.CloseAtEnd(t, c)
	x := &conversation{Conn: c, name: name}
	if x.first, err = x.ask(t.Context()); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return x
}

// openAll opens a connection to each kind of frontend, from the client and from the node.
func (w *world) openAll(t *testing.T) (all []*conversation) {
	t.Helper()
	for _, to := range []string{
		"10.96.0.1:80", nodeIP + ":30080", "203.0.113.1:80", "203.0.113.2:80", "203.0.113.3:80", nodeIP + ":30081", "203.0.113.4:80",
		"10.96.0.4:80", "udp/10.96.0.5:80", "10.96.0.7:80", "[fd00:96::1]:80", "[" + nodeIP6 + "]:30082", "[2001:db8:1::1]:80", "[2001:db8:1::2]:80",
	} {
		all = append(all, open(t, w.client, "from the client to "+to, to))
	}
	for _, to := range []string{"10.96.0.1:80", nodeIP + ":30080", "203.0.113.2:80", "10.96.0.4:80", "udp/10.96.0.5:80", "[fd00:96::1]:80"} {
		all = append(all, open(t, w.node, "from the node to "+to, to))
	}
	return all
}
