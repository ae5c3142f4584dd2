package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/vipkit/vipkit/internal/netns"
)

const (
	nodeName = "node-1"
	podRange = "10.244.1.0/24"
	// The node has one address on the pods' side and one on the client's.
	nodeForPods   = "10.244.1.1"
	nodeForClient = "192.0.2.1"
	clientAddr    = "192.0.2.10"
	clientLink    = "client"
)

// network is a node with its pods, and a client outside of the cluster. Each is
// a network namespace: a network stack of its own, with its own addresses,
// routes and nftables. They are joined by virtual cables.
type network struct {
	node, client *netns.NS
	pods         []*netns.NS
	all          []*netns.NS
	servers      []*http.Server
	served       chan error
}

// newNetwork builds the network. Close has something to do even after an error.
func newNetwork(ctx context.Context, m *manifest) (*network, error) {
	n := &network{served: make(chan error, len(m.pods))}
	err := n.build()
	for i, p := range m.pods {
		if err == nil {
			err = n.addPod(ctx, i, p)
		}
	}
	return n, err
}

// build makes the node and the client.
func (n *network) build() (err error) {
	if n.node, err = n.newNamespace(); err != nil {
		return err
	}
	if n.client, err = n.newNamespace(); err != nil {
		return err
	}
	if err := netns.Link(netns.End{NS: n.node, Name: clientLink}, netns.End{NS: n.client, Name: "eth0"}); err != nil {
		return err
	}
	return errors.Join(
		n.node.Forward(), // A node is a router.
		n.node.AddAddress(clientLink, netip.MustParsePrefix(nodeForClient+"/24")),
		n.client.AddAddress("eth0", netip.MustParsePrefix(clientAddr+"/24")),
		n.client.AddRoute(defaultRoute(nodeForClient)),
	)
}

// addPod makes a pod in the way of many network plugins: a cable to the node,
// which has a route to the pod's address.
func (n *network) addPod(ctx context.Context, i int, p pod) error {
	ns, err := n.newNamespace()
	if err != nil {
		return err
	}
	n.pods = append(n.pods, ns)
	link := fmt.Sprintf("pod%d", i)
	if err := netns.Link(netns.End{NS: n.node, Name: link}, netns.End{NS: ns, Name: "eth0"}); err != nil {
		return err
	}
	address := netip.PrefixFrom(p.addr.Addr(), p.addr.Addr().BitLen())
	err = errors.Join(
		n.node.AddAddress(link, netip.MustParsePrefix(nodeForPods+"/32")),
		n.node.AddRoute(netns.Route{To: address, Link: link}),
		ns.AddAddress("eth0", address),
		ns.AddRoute(defaultRoute(nodeForPods)),
	)
	if err != nil {
		return err
	}
	return n.serve(ctx, ns, p)
}

func (n *network) newNamespace() (*netns.NS, error) {
	ns, err := netns.New()
	if err == nil {
		n.all = append(n.all, ns)
	}
	return ns, err
}

func defaultRoute(via string) netns.Route {
	return netns.Route{To: netip.MustParsePrefix("0.0.0.0/0"), Link: "eth0", Via: netip.MustParseAddr(via)}
}

// serve runs a pod's web server, which says who it is and whom it sees.
func (n *network) serve(ctx context.Context, ns *netns.NS, p pod) error {
	listener, err := ns.Listen(ctx, "tcp", p.addr.String())
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintln(w, p.name, r.RemoteAddr) // A client that has gone needs no answer.
		}),
	}
	n.servers = append(n.servers, server)
	go func() { n.served <- server.Serve(listener) }()
	return nil
}

// Close ends the servers and gives up the namespaces, which with that cease to
// exist, and all that was in them.
func (n *network) Close() error {
	var errs []error
	for _, s := range n.servers {
		errs = append(errs, s.Close())
		if err := <-n.served; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	for _, ns := range n.all {
		errs = append(errs, ns.Close())
	}
	return errors.Join(errs...)
}
