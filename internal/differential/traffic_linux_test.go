package differential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// place is a host with a pod, another machine, and another node with an endpoint, which answers by TCP
// and UDP.
type place struct {
	host
	clients map[string]*netns.NS
}

const (
	greeting = "hello"
	patience = 5 * time.Second
)

func newPlace(t *testing.T) place {
	t.Helper()
	pod, outside, server := netnstest.NewNS(t), netnstest.NewNS(t), netnstest.NewNS(t)
	p := place{host: newHost(t)}
	p.clients = map[string]*netns.NS{"pod": pod, "outside": outside, "node": p.NS}
	everywhere := netip.MustParsePrefix("0.0.0.0/0")
	errs := []error{p.Forward()}
	for _, e := range []struct {
		ns             *netns.NS
		link, far, own string
	}{{pod, "pod", "10.244.1.2/24", "10.244.1.1/24"}, {outside, "outside", "192.0.2.2/24", "192.0.2.1/24"}, {server, "server", "10.244.2.2/24", "10.244.2.1/24"}} {
		own := netip.MustParsePrefix(e.own)
		errs = append(errs,
			netns.Link(netns.End{NS: e.ns, Name: "up"}, netns.End{NS: p.NS, Name: e.link}),
			p.AddAddress(e.link, own), e.ns.AddAddress("up", netip.MustParsePrefix(e.far)),
			e.ns.AddRoute(netns.Route{To: everywhere, Link: "up", Via: own.Addr()}))
	}
	// The node has a default route, as nodes do: without any, it could not send to ClusterIPs.
	errs = append(errs, p.AddRoute(netns.Route{To: everywhere, Link: "outside", Via: netip.MustParseAddr("192.0.2.2")}))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	serve(t, server, "10.244.2.2:8080")
	// On most nodes the network plugin translates, too. If nobody does, the kernel forgets all translations.
	if _, err := netnstest.Run(t, p.NS, `table ip plugin {
	chain post { type nat hook postrouting priority 110; ip saddr 198.51.100.0/24 masquerade; }
}`, netnstest.NFT(t), "-f", "-"); err != nil {
		t.Fatal(err)
	}
	return p
}

// serve answers until the end of the test.
func serve(t *testing.T, server *netns.NS, at string) {
	t.Helper()
	l, err := server.Listen(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	c, err := server.ListenPacket(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	testenv.CloseAtEnd(t, l)
	testenv.CloseAtEnd(t, c)
	serving.Go(func() {
		for {
			accepted, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = io.WriteString(accepted, greeting) // the client notices if that fails
				_ = accepted.Close()
			}
		}
	})
	serving.Go(func() {
		for b := make([]byte, 16); ; {
			_, from, err := c.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteTo([]byte(greeting), from)
			}
		}
	})
}

// ask makes a connection, and wants the greeting.
func ask(ctx context.Context, from *netns.NS, network, address string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return from.Do(func() error {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // only the greeting matters
		if tcp, ok := c.(*net.TCPConn); ok {
			err = tcp.SetLinger(0)
		} else {
			_, err = io.WriteString(c, "?")
		}
		at, _ := ctx.Deadline()
		got := make([]byte, len(greeting))
		if err = errors.Join(err, c.SetDeadline(at)); err == nil {
			_, err = io.ReadFull(c, got)
		}
		if err == nil && string(got) != greeting {
			err = fmt.Errorf("got %q, want %q", got, greeting)
		}
		return err
	})
}

// web is a Service of TCP and UDP for both families; n is part of its name, addresses and node ports.
func web(n int) proxy.Snapshot {
	node := &proxy.Node{
		Name: "node-1", NodePorts: proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes("10.244.1.0/24", "fd00:10::/64")},
		ServiceCIDRs: snapshots.Prefixes("10.96.0.0/16", "fd00:96::/112"),
	}
	var ports []*proxy.ServicePort
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		one := snapshots.EachWith(oneService(), func(p *proxy.ServicePort) {
			p.Name.Name, p.Name.Port, p.Name.Protocol = fmt.Sprint("web-", n), strings.ToLower(string(protocol)), protocol
			at, nodePort := p.Frontends[0].Addr, p.Frontends[1].Addr
			for range n {
				at = netip.AddrPortFrom(at.Addr().Next(), at.Port())
			}
			p.Frontends[0].Addr, p.Frontends[1].Addr = at, netip.AddrPortFrom(nodePort.Addr(), nodePort.Port()+uint16(n))
		})
		ports = slices.AppendSeq(ports, one.All())
	}
	return proxy.NewSnapshot(node, ports...)
}

// wantService connects from everywhere to all frontends of IPv4 of web(n), except those that lacks
// names, if that is not nil.
func (p place) wantService(t *testing.T, when string, n int, lacks func(client string, clusterIP bool) bool) {
	t.Helper()
	// A client may choose the source port of an earlier flow, which continues to where it went.
	if err := p.Netlink().ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Fatal(err)
	}
	var asking sync.WaitGroup
	for from, ns := range p.clients {
		for _, network := range []string{"tcp", "udp"} {
			for _, to := range []string{fmt.Sprintf("10.96.0.%d:80", 10+n), fmt.Sprintf("192.0.2.1:%d", 30080+n)} {
				if lacks != nil && lacks(from, strings.HasSuffix(to, ":80")) {
					continue
				}
				asking.Go(func() {
					if err := ask(t.Context(), ns, network, to); err != nil {
						t.Errorf("%s: %s from %s: %v", when, network, from, err)
					}
				})
			}
		}
	}
	asking.Wait()
}

// A backend of one kind ends without Cleanup, and one of another kind starts, both with defaults. After
// the first Apply of the second one each client reaches each frontend. Until then the rules of the first
// one serve, unless its process must: no connection of a pod fails.
func TestTrafficFromKindToKind(t *testing.T) {
	p := newPlace(t)
	snapshot := web(0)
	for _, first := range kinds() {
		for _, second := range kinds() {
			if first.name == second.name {
				continue
			}
			t.Run(first.name+" "+second.name, func(t *testing.T) {
				a := p.open(t, first, backends.Identity{})
				apply(t, a, snapshot)
				p.wantService(t, "the first one runs", 0, nil)
				stop := func() int { return 1 }
				if inKernel := strings.Contains(first.name, "tables"); inKernel {
					stop = p.connectAll(t)
				}
				closeOf(t, a)
				b := p.open(t, second, backends.Identity{})
				apply(t, b, snapshot)
				if stop() == 0 {
					t.Error("connections during the switch: got none, want some")
				}
				p.wantService(t, "after the first Apply of the second one", 0, nil)
				cleanUp(t, b)
			})
		}
	}
}

// connectAll connects from the pod to the ClusterIP of web(0), again and again, until it is stopped.
func (p place) connectAll(t *testing.T) (stop func() (connections int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	n := 0
	asking.Go(func() {
		for ; n == 0 || ctx.Err() == nil; n++ {
			if err := ask(context.WithoutCancel(ctx), p.clients["pod"], "tcp", "10.96.0.10:80"); err != nil {
				t.Errorf("connection %d during the switch: %v", n, err)
			}
		}
	})
	stop = func() int {
		cancel()
		asking.Wait()
		return n
	}
	t.Cleanup(func() { stop() })
	return stop
}

// lackedBeside returns which clients do not reach the Services of an instance, if an instance of another
// kind serves the same ranges of ClusterIPs (docs/dataplane/identities.md).
func lackedBeside(k, other kind) func(client string, clusterIP bool) bool {
	return func(client string, clusterIP bool) bool {
		switch {
		case !clusterIP || k.name == "routes":
			return false
		case other.name == "routes":
			return client == "node" || k.name == "tproxy"
		}
		return client == "node" && k.name == "tproxy" && strings.HasPrefix(other.name, "iptables")
	}
}

// Instances with identities of their own serve different Services of the same range: neither rejects,
// drops or captures connections to Services of the other, whichever starts first, nor removes them when it ends.
func TestTrafficSideBySide(t *testing.T) {
	p := newPlace(t)
	for _, first := range kinds() {
		for _, second := range kinds() {
			t.Run(first.name+" "+second.name, func(t *testing.T) {
				a := p.open(t, first, backends.Identity{Name: "one", Mark: 1 << 24})
				apply(t, a, web(0))
				b := p.open(t, second, backends.Identity{Name: "other", Mark: 1 << 25})
				apply(t, b, web(1))
				p.wantService(t, "Service of the first one", 0, lackedBeside(first, second))
				p.wantService(t, "Service of the second one", 1, lackedBeside(second, first))
				cleanUp(t, a)
				p.wantService(t, "Service of the second one, alone", 1, nil)
				cleanUp(t, b)
			})
		}
	}
}

func apply(t *testing.T, b proxy.Backend, s proxy.Snapshot) {
	t.Helper()
	if err := b.Apply(t.Context(), proxy.Snapshot{}, s); err != nil {
		t.Fatal(err)
	}
}

// An interface of the node gets an address of the range of ClusterIPs, and loses it, while a backend runs:
// connections to it are for the node as long as it has the address, and dropped before and after.
func TestAddressOfTheRangeComesAndGoes(t *testing.T) {
	const address, silence = "10.96.0.200/32", 300 * time.Millisecond
	p := newPlace(t)
	serve(t, p.NS, "0.0.0.0:7777")
	connect := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return ask(ctx, p.clients["pod"], "tcp", "10.96.0.200:7777")
	}
	for _, k := range kinds() {
		b := p.open(t, k, backends.Identity{})
		apply(t, b, web(0))
		if err := connect(silence); !isTimeout(err) {
			t.Errorf("%s: connecting before: got %v, want no answer", k.name, err)
		}
		p.run(t, "ip addr add "+address+" dev pod")
		if err := connect(patience); err != nil {
			t.Errorf("%s: connecting to the node's address: %v", k.name, err)
		}
		p.run(t, "ip addr del "+address+" dev pod")
		if err := connect(silence); !isTimeout(err) {
			t.Errorf("%s: connecting after: got %v, want no answer", k.name, err)
		}
		cleanUp(t, b)
	}
}

func isTimeout(err error) bool {
	failed, is := errors.AsType[net.Error](err)
	return is && failed.Timeout()
}

// With TPROXY, a UDP flow of the node ends with its Service, although connection tracking knows it.
func TestFlowOfTheNodeEndsWithItsService(t *testing.T) {
	p := newPlace(t)
	tproxy := kinds()[3]
	b := p.open(t, tproxy, backends.Identity{})
	apply(t, b, web(0))
	c, err := p.Dial(t.Context(), "udp", "10.96.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	testenv.CloseAtEnd(t, c)
	exchange := func() error {
		_, err := io.WriteString(c, "?")
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, len(greeting)))
		}
		return err
	}
	if err := errors.Join(c.SetDeadline(time.Now().Add(patience)), exchange(), exchange()); err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), web(0), proxy.NewSnapshot(web(0).Node())); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "?"); !errors.Is(err, unix.EPERM) {
		t.Errorf("%s: sending after the Service is gone: got %v, want that the node drops it: %v", tproxy.name, err, unix.EPERM)
	}
	cleanUp(t, b)
}
