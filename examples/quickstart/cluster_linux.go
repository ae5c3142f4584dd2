package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/vipkit/vipkit/internal/kernel/netns"
)

//go:embed manifest.yaml
var manifestYAML string

const (
	nodeName = "node-1"
	podRange = "10.244.1.0/24"
	// The node has one address for the pods, and one for the client.
	nodeForPods   = "10.244.1.1"
	nodeForClient = "192.0.2.1"
	clientAddr    = "192.0.2.10"
	clientLink    = "client"
)

// manifest is the content of manifest.yaml. A real proxy gets such objects from the API server.
type manifest struct {
	service v1.Service
	slice   discoveryv1.EndpointSlice
	vip     netip.AddrPort // the address and port of the Service
	pods    []pod          // the endpoints of the slice, in its order
}

type pod struct {
	name string
	addr netip.AddrPort
}

func readManifest(text string) (*manifest, error) {
	m := &manifest{}
	service, slice, found := strings.Cut(text, "\n---\n")
	if !found {
		return nil, errors.New("a Service and an EndpointSlice are required, with a line --- between them")
	}
	if err := yaml.UnmarshalStrict([]byte(service), &m.service); err != nil {
		return nil, fmt.Errorf("the Service: %w", err)
	}
	if err := yaml.UnmarshalStrict([]byte(slice), &m.slice); err != nil {
		return nil, fmt.Errorf("the EndpointSlice: %w", err)
	}
	if len(m.service.Spec.Ports) != 1 || len(m.slice.Ports) != 1 || m.slice.Ports[0].Port == nil {
		return nil, errors.New("the Service and the EndpointSlice must have one port each")
	}
	vip, err := netip.ParseAddr(m.service.Spec.ClusterIP)
	if err != nil {
		return nil, fmt.Errorf("spec.clusterIP: %w", err)
	}
	m.vip = netip.AddrPortFrom(vip, uint16(m.service.Spec.Ports[0].Port))
	for _, e := range m.slice.Endpoints {
		if e.TargetRef == nil || len(e.Addresses) != 1 {
			return nil, errors.New("each endpoint must have one address and a targetRef, which names the pod")
		}
		ip, err := netip.ParseAddr(e.Addresses[0])
		if err != nil || !netip.MustParsePrefix(podRange).Contains(ip) {
			return nil, fmt.Errorf("endpoint %s: %s is not an address of a pod; those are in %s", e.TargetRef.Name, e.Addresses[0], podRange)
		}
		m.pods = append(m.pods, pod{e.TargetRef.Name, netip.AddrPortFrom(ip, uint16(*m.slice.Ports[0].Port))})
	}
	if len(m.pods) < 2 {
		return nil, errors.New("at least two endpoints are required, so that there is something to choose from")
	}
	return m, nil
}

// network is a node with its pods, and a client outside of the cluster. Each is
// a network namespace: a network stack of its own, with its own addresses,
// routes and nftables. Virtual Ethernet links connect them.
type network struct {
	node, client *netns.NS
	pods         []*netns.NS
	closers      []io.Closer
}

// newNetwork builds the network. The caller must close it, also after an error.
func newNetwork(ctx context.Context, pods []pod) (n *network, err error) {
	n = &network{}
	if n.node, err = n.newNamespace(); err != nil {
		return n, err
	}
	if err := n.node.Forward(); err != nil { // A node is a router.
		return n, err
	}
	if n.client, err = n.attach(clientLink, netip.MustParseAddr(nodeForClient), netip.MustParseAddr(clientAddr)); err != nil {
		return n, err
	}
	for i, p := range pods {
		ns, err := n.attach(fmt.Sprintf("pod%d", i), netip.MustParseAddr(nodeForPods), p.addr.Addr())
		if err == nil {
			err = n.serve(ctx, ns, p)
		}
		if err != nil {
			return n, err
		}
		n.pods = append(n.pods, ns)
	}
	return n, nil
}

// attach makes a namespace with a link to the node, as many network plugins do
// for pods: the node has a route to its address.
func (n *network) attach(link string, node, address netip.Addr) (*netns.NS, error) {
	ns, err := n.newNamespace()
	if err != nil {
		return nil, err
	}
	if err := netns.Link(netns.End{NS: n.node, Name: link}, netns.End{NS: ns, Name: "eth0"}); err != nil {
		return nil, err
	}
	host := netip.PrefixFrom(address, 32)
	return ns, errors.Join(
		n.node.AddAddress(link, netip.PrefixFrom(node, 32)),
		n.node.AddRoute(netns.Route{To: host, Link: link}),
		ns.AddAddress("eth0", host),
		ns.AddRoute(netns.Route{To: netip.MustParsePrefix("0.0.0.0/0"), Link: "eth0", Via: node}),
	)
}

func (n *network) newNamespace() (*netns.NS, error) {
	ns, err := netns.New()
	if err == nil {
		n.closers = append(n.closers, ns)
	}
	return ns, err
}

// serve runs a pod's web server, which answers with the pod's name and the address of the caller.
func (n *network) serve(ctx context.Context, ns *netns.NS, p pod) error {
	listener, err := ns.Listen(ctx, "tcp", p.addr.String())
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			caller, _, _ := net.SplitHostPort(r.RemoteAddr)
			_, _ = fmt.Fprintf(w, "%s %s", p.name, caller) // After an error there is no client to answer.
		}),
	}
	n.closers = append(n.closers, server)
	go func() { _ = server.Serve(listener) }() // If Serve ends early, requests fail.
	return nil
}

// Close closes the servers and the namespaces. The kernel then removes the namespaces, with
// everything in them.
func (n *network) Close() error {
	var errs []error
	for _, c := range slices.Backward(n.closers) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// newClient returns a client in a namespace that makes a connection for each request,
// or one that keeps its connection. A service proxy chooses once for each connection.
func newClient(from *netns.NS, keep bool) *http.Client {
	return &http.Client{
		Timeout:   3 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: !keep, DialContext: from.Dial},
	}
}

// ask sends a request. It returns the name of the pod that answers, and the source address that
// the pod sees.
func ask(ctx context.Context, client *http.Client, to netip.AddrPort) (name, sees string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String(), http.NoBody)
	if err != nil {
		return "", "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", "", err
	}
	body, err := io.ReadAll(response.Body)
	name, sees, _ = strings.Cut(string(body), " ")
	return name, sees, errors.Join(err, response.Body.Close())
}

// askUntil sends requests, each on a new connection, until the wanted pod answers.
func askUntil(ctx context.Context, client *http.Client, to netip.AddrPort, wanted string) (sees string, err error) {
	const attempts = 500
	for range attempts {
		name, sees, err := ask(ctx, client, to)
		if err != nil || name == wanted {
			return sees, err
		}
		client.CloseIdleConnections()
	}
	return "", fmt.Errorf("%s must answer, but got none of %d requests", wanted, attempts)
}
