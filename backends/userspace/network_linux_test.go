package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

const (
	clientAddr, clientAddr6 = "10.244.1.10", "fd00:1::10"
	podAddr                 = "10.244.2.10"
	podServer, podServer6   = podAddr + ":8080", "[fd00:2::10]:8080"
	otherPod                = podAddr + ":8081"
	podSocket               = podAddr + ":9000" // where no server is
	nodeServer              = "10.244.2.1:8081"
	one, two                = "10.96.0.1:80", "10.96.0.2:80"
	service6                = "[fd00:96::1]:80"
	clients, pods           = "10.244.1.1/24 fd00:1::1/64", "10.244.2.1/24 fd00:2::1/64"
	everywhere              = "0.0.0.0/0 ::/0"
)

// network is a lab with a client and a pod, and a node between them.
type network struct {
	*lab.Lab
	client string // the host that asks
}

func clientHost() lab.Host {
	return lab.Host{Name: "client", Uplink: "node", Link: "clients", Addrs: clientAddr + "/24 " + clientAddr6 + "/64", Gateway: clients, Behind: everywhere}
}

// newNetwork makes a network whose pod has the first addresses of Services, too: packets to Services that
// the node does not capture go there.
func newNetwork(t *testing.T) network {
	t.Helper()
	return network{lab.New(t, lab.Host{Name: "node"}, clientHost(), lab.Host{
		Name: "pod", Uplink: "node", Link: "pods", Gateway: pods, Addrs: podAddr + "/24 10.96.0.1/32 10.96.0.2/32 fd00:2::10/64",
		Serve: []uint16{22, 80, 8080, 8081},
	}), "client"}
}

// newBridged makes a network whose node has two pods on a bridge. Netfilter sees bridged packets if set.
func newBridged(t *testing.T, netfilter bool) network {
	t.Helper()
	pod := lab.Host{Name: "pod", Uplink: "node", Bridge: "br0", Gateway: pods, Addrs: podAddr + "/24 fd00:2::10/64", Serve: []uint16{8080}}
	other := pod
	other.Name, other.Addrs = "other", "10.244.2.11/24 fd00:2::11/64"
	n := network{lab.New(t, lab.Host{Name: "node"}, clientHost(), pod, other), "client"}
	n.setNetfilter(t, netfilter)
	return n
}

// setNetfilter sets whether netfilter of the node sees bridged packets.
func (n network) setNetfilter(t *testing.T, sees bool) {
	t.Helper()
	for _, name := range []string{"iptables", "ip6tables"} {
		testenv.NoError(t, n.node().Sysctl("net/bridge/bridge-nf-call-"+name, map[bool]string{false: "0", true: "1"}[sees]))
	}
}

// from returns the network with another host that asks.
func (n network) from(host string) network { return network{n.Lab, host} }

func (n network) node() *netns.NS { return n.NS("node") }

// start starts a backend on the node, which is closed when the test ends.
func (n network) start(t *testing.T, o userspace.Options) *userspace.Backend {
	t.Helper()
	return netnstest.Open(t, n.node(), func() (*userspace.Backend, error) { return userspace.New(o) })
}

// nft runs a script on the node.
func (n network) nft(t *testing.T, script string) string {
	t.Helper()
	return n.nftAt(t, "node", script)
}

func (n network) nftAt(t *testing.T, host, script string) string {
	t.Helper()
	out, err := netnstest.Run(t, n.NS(host), script, netnstest.NFT(t), "-f", "-")
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// dial opens a connection from an address and port of the host that asks; a zero address is any. Connections to
// different destinations may have one port.
func (n network) dial(t *testing.T, network string, from netip.AddrPort, to string, options ...func(fd int) error) (*lab.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	d := net.Dialer{Control: control(append(options, reuse)...)}
	switch local := (net.UDPAddr{IP: from.Addr().AsSlice(), Port: int(from.Port())}); {
	case from == netip.AddrPort{}:
	case network == "udp":
		d.LocalAddr = &local
	default:
		d.LocalAddr = &net.TCPAddr{IP: local.IP, Port: local.Port}
	}
	var c net.Conn
	err := n.NS(n.client).Do(func() (err error) {
		c, err = d.DialContext(ctx, network, to)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	return lab.NewConn(c), nil
}

// control sets socket options.
func control(options ...func(fd int) error) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) {
			for _, set := range options {
				err = errors.Join(err, set(int(fd)))
			}
		})
		return errors.Join(failed, err)
	}
}

func reuse(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }

// transparent allows a socket to use addresses that the host does not have.
func transparent(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1) }

// ask connects and asks. The connection stays open. A packet that was lost is an error.
func (n network) ask(t *testing.T, to string) (lab.Answer, *lab.Conn, error) {
	t.Helper()
	return n.askFor(t, to, 30*time.Second)
}

// askFor is ask with a limit of time.
func (n network) askFor(t *testing.T, to string, patience time.Duration) (a lab.Answer, c *lab.Conn, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if c, err = lab.Dial(ctx, n.NS(n.client), "tcp", to); err != nil {
		return a, nil, err
	}
	t.Cleanup(func() { _ = c.Conn.Close() })
	if err = checkRetransmits(c.Conn); err == nil {
		a, err = c.Ask(ctx)
	}
	return a, c, err
}

// wantServer asks, and checks which server answers.
func (n network) wantServer(t *testing.T, to, server string) (lab.Answer, *lab.Conn) {
	t.Helper()
	a, c, err := n.ask(t, to)
	if err != nil || a.Own.String() != server {
		t.Fatalf("connection from %s to %s: got server %v and error %v, want %s", n.client, to, a.Own, err, server)
	}
	return a, c
}

// wantAnswer asks, and checks that the pod answers.
func (n network) wantAnswer(t *testing.T, to string) (lab.Answer, *lab.Conn) {
	t.Helper()
	return n.wantServer(t, to, endpointOf(to))
}

// bound is a host that asks from an address and port of its own, with socket options.
type bound struct {
	network
	from    string
	options []func(fd int) error
}

func (n network) bound(from string, options ...func(fd int) error) bound {
	return bound{n, from, options}
}

// wantFlow asks by TCP or UDP, and checks which server answers.
func (b bound) wantFlow(t *testing.T, protocol, to, server string) *lab.Conn {
	t.Helper()
	c, err := b.dial(t, protocol, netip.MustParseAddrPort(b.from), to, b.options...)
	var a lab.Answer
	if err == nil {
		a, err = c.Ask(t.Context())
	}
	if err != nil || a.Own.String() != server {
		t.Errorf("%s from %s %s to %s: got server %v and error %v, want %s", protocol, b.client, b.from, to, a.Own, err, server)
	}
	return c
}

// wantSilence checks that a connection gets neither an answer nor a refusal.
func (n network) wantSilence(t *testing.T, to string) {
	t.Helper()
	if a, c, err := n.askFor(t, to, 900*time.Millisecond); c != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection from %s to %s: got server %v and error %v, want silence", n.client, to, a.Own, err)
	}
}

// wantRefused checks that a connection is refused.
func (n network) wantRefused(t *testing.T, to string) {
	t.Helper()
	if a, _, err := n.askFor(t, to, 5*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connection from %s to %s: got server %v and error %v, want %v", n.client, to, a.Own, err, syscall.ECONNREFUSED)
	}
}

// flow opens a flow of UDP.
func (n network) flow(t *testing.T, to string) *lab.Conn {
	t.Helper()
	c, err := n.dial(t, "udp", netip.AddrPort{}, to)
	testenv.NoError(t, err)
	return c
}

// askAgain asks, again if a datagram is lost.
func askAgain(t *testing.T, c *lab.Conn) (a lab.Answer) {
	t.Helper()
	for range 10 {
		// With a shorter limit, a late answer would be mistaken for the next one.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		a, err := c.Ask(ctx)
		cancel()
		if err == nil {
			return a
		}
	}
	t.Errorf("datagrams to %v: got no answer, want one", c.RemoteAddr())
	return a
}

// checkRetransmits returns an error if the kernel had to send packets again. The time to connect
// would not distinguish lost packets from a busy machine.
func checkRetransmits(c net.Conn) error {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return fmt.Errorf("got a %T, want a TCP connection", c)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	if info.Total_retrans > 0 {
		return fmt.Errorf("%d packets were sent again", info.Total_retrans)
	}
	return nil
}

// eventually waits, for a bounded time, until a condition holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// forCaptures runs a test with each capture that programs the kernel.
func forCaptures(t *testing.T, test func(*testing.T, userspace.Capture)) {
	t.Helper()
	for _, c := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		t.Run(c.String(), func(t *testing.T) { test(t, c) })
	}
}

func apply(t *testing.T, b *userspace.Backend, s proxy.Snapshot) {
	t.Helper()
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
}

// theNode returns the node, whose node ports answer at all of its addresses.
func theNode() *proxy.Node {
	return snapshots.Node("10.244.1.1", "10.244.2.1", "fd00:1::1", "fd00:2::1")
}

func services(ports ...*proxy.ServicePort) proxy.Snapshot {
	return proxy.NewSnapshot(theNode(), ports...)
}

// snapshot returns a Service at an address, whose endpoint is the pod.
func snapshot(at string) proxy.Snapshot { return services(web(at)) }

// endpointOf returns the address of the pod in the family of a frontend.
func endpointOf(at string) string {
	if strings.HasPrefix(at, "[") {
		return podServer6
	}
	return podServer
}

// web returns a service port of TCP that is named after its first frontend. Its endpoint is the pod if none is given.
func web(at string, to ...string) *proxy.ServicePort {
	first, _, _ := strings.Cut(at, " ")
	if len(to) == 0 {
		to = []string{endpointOf(first)}
	}
	return snapshots.With(snapshots.Port("web", at, to...), func(p *proxy.ServicePort) { p.Name.Name = first })
}

// dns is web for UDP, at an external address.
func dns(at string, to ...string) *proxy.ServicePort {
	return snapshots.With(web(at, to...), ofProtocol(v1.ProtocolUDP), ofKind(proxy.ExternalIP))
}

func ofProtocol(protocol v1.Protocol) snapshots.Edit {
	return func(p *proxy.ServicePort) { p.Name.Protocol = protocol }
}

// ofKind sets the kind of all frontends.
func ofKind(kind proxy.FrontendKind) snapshots.Edit {
	return func(p *proxy.ServicePort) {
		for i := range p.Frontends {
			p.Frontends[i].Kind = kind
		}
	}
}

// doing sets the action of all frontends.
func doing(a proxy.Action) snapshots.Edit {
	return snapshots.Routes(proxy.TrafficRoute{Action: a}, proxy.TrafficRoute{Action: a})
}

// none returns a service port without endpoints.
func none(at string) *proxy.ServicePort {
	return snapshots.With(web(at), snapshots.Pool(), doing(proxy.Reject))
}

// bothProtocols returns a Service in both families, with a node port, for TCP and UDP, whose endpoint is the pod.
func bothProtocols() proxy.Snapshot {
	var ports []*proxy.ServicePort
	for _, at := range []string{one + " :30080", service6 + " [::]:30080"} {
		ports = append(ports, web(at), snapshots.With(web(at), ofProtocol(v1.ProtocolUDP)))
	}
	node := theNode()
	node.ServiceCIDRs = snapshots.Prefixes("10.96.0.0/16", "fd00:96::/64")
	node.LocalTraffic.Sources = snapshots.Prefixes("10.244.2.0/24", "fd00:2::/64")
	return proxy.NewSnapshot(node, ports...)
}

// and adds service ports to a snapshot, or replaces service ports with the same names.
func and(s proxy.Snapshot, ports ...*proxy.ServicePort) proxy.Snapshot {
	is := func(a *proxy.ServicePort) bool {
		return slices.ContainsFunc(ports, func(b *proxy.ServicePort) bool { return a.Name == b.Name })
	}
	return proxy.NewSnapshot(s.Node(), append(slices.DeleteFunc(slices.Collect(s.All()), is), ports...)...)
}
