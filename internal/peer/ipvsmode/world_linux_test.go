//go:build ipvs

package ipvsmode

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// world is a node between a client, the endpoints and another pod.
type world struct{ client, node, pods, pod *netns.NS }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{client: netnstest.NewNS(t), node: netnstest.NewNS(t), pods: netnstest.NewNS(t), pod: netnstest.NewNS(t)}
	steps := []error{
		netns.Link(netns.End{NS: w.client, Name: "up"}, netns.End{NS: w.node, Name: "clients"}),
		netns.Link(netns.End{NS: w.pods, Name: "up"}, netns.End{NS: w.node, Name: "pods"}),
		netns.Link(netns.End{NS: w.pod, Name: "up"}, netns.End{NS: w.node, Name: "pod"}),
	}
	add := func(ns *netns.NS, link, ip string, bits int) {
		steps = append(steps, ns.AddAddress(link, netip.PrefixFrom(netip.MustParseAddr(ip), bits)))
	}
	add(w.node, "clients", nodeIP, 24)
	add(w.node, "clients", nodeIP6, 64)
	add(w.node, "pods", gatewayIP, 24)
	add(w.node, "pods", gatewayIP6, 64)
	add(w.node, "pod", "10.244.1.1", 24)
	add(w.node, "pod", "fd00:244:0:1::1", 64)
	add(w.pod, "up", "10.244.1.2", 24)
	add(w.pod, "up", "fd00:244:0:1::2", 64)
	add(w.client, "up", clientIP, 24)
	add(w.client, "up", clientIP6, 64)
	for i := range podIPs(false) {
		add(w.pods, "up", podIPs(false)[i], 24)
		add(w.pods, "up", podIPs(true)[i], 64)
	}
	route := func(ns *netns.NS, link string, via ...string) {
		for i, everywhere := range []string{"0.0.0.0/0", "::/0"} {
			steps = append(steps, ns.AddRoute(netns.Route{To: netip.MustParsePrefix(everywhere), Link: link, Via: netip.MustParseAddr(via[i])}))
		}
	}
	route(w.client, "up", nodeIP, nodeIP6)
	route(w.pods, "up", gatewayIP, gatewayIP6)
	route(w.pod, "up", "10.244.1.1", "fd00:244:0:1::1")
	route(w.node, "clients", clientIP, clientIP6) // With nftables, processes of the node need any route.
	testenv.NoError(t, errors.Join(append(steps, w.node.Forward())...))
	echo(t, w.pods, ":8080")
	echoUDP(t, w.pods, podPort)
	echo(t, w.node, ":81")
	return w
}

// echo answers each line that arrives at a port with the addresses of server and client, until
// the test ends.
func echo(t *testing.T, ns *netns.NS, port string) {
	t.Helper()
	l, err := ns.Listen(t.Context(), "tcp", port)
	testenv.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			serving.Go(func() { answer(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close() // an error does not matter
		serving.Wait()
	})
}

// echoUDP is echo for datagrams.
func echoUDP(t *testing.T, ns *netns.NS, port uint16) {
	t.Helper()
	c, err := ns.ListenUDP(t.Context(), port)
	testenv.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		c.Serve(func(_ []byte, client, server netip.AddrPort) []byte {
			return []byte(server.Addr().String() + " for " + client.Addr().String() + "\n")
		})
	})
	t.Cleanup(func() {
		_ = c.Close() // an error does not matter
		serving.Wait()
	})
}

func answer(c net.Conn) {
	defer c.Close() //nolint:errcheck // the client notices
	_ = c.SetDeadline(time.Now().Add(5 * time.Minute))
	server, _, _ := net.SplitHostPort(c.LocalAddr().String())
	client, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	for lines := bufio.NewScanner(c); lines.Scan(); {
		if _, err := io.WriteString(c, server+" for "+client+"\n"); err != nil {
			return
		}
	}
}

// patience is how long connecting, or an answer, may take.
const patience = 10 * time.Second

// conversation is an open connection, or a flow of UDP.
type conversation struct {
	net.Conn
	network, name string
	lines         *bufio.Reader
	first         string
}

// ask returns the answer.
func (c *conversation) ask() (string, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, "who\n"); err != nil {
		return "", err
	}
	line, err := c.lines.ReadString('\n')
	return strings.TrimSpace(line), err
}

// goesOn checks that the same server still answers.
func (c *conversation) goesOn(t *testing.T, when string) {
	t.Helper()
	if got, err := c.ask(); err != nil || got != c.first {
		t.Errorf("%s: connection %s: got an answer of %q, error %v, want one of %q", when, c.name, got, err, c.first)
	}
}

// answers checks that a server answers.
func (c *conversation) answers(t *testing.T, when string) {
	t.Helper()
	if got, err := c.ask(); err != nil {
		t.Errorf("%s: connection %s: got an answer of %q, error %v, want one of any server", when, c.name, got, err)
	}
}

// dial connects, and asks once.
func dial(ctx context.Context, from *netns.NS, network, to string) (*conversation, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := from.Dial(ctx, network, to)
	if err != nil {
		return nil, err
	}
	x := &conversation{Conn: c, network: network, lines: bufio.NewReader(c)}
	if x.first, err = x.ask(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return x, nil
}

// open connects until the test ends.
func open(t *testing.T, from *netns.NS, name, to string) *conversation {
	t.Helper()
	network, address, found := strings.Cut(to, "/")
	if !found {
		network, address = "tcp", to
	}
	c, err := dial(t.Context(), from, network, address)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	c.name = name
	return c
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
