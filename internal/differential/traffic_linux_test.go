package differential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
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
	"github.com/vipkit/vipkit/proxy"
)

// place is a host with a pod, another machine, and another node with an endpoint, which answers by TCP
// and UDP. All have addresses of both families.
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
	err := errors.Join(
		p.Forward(),
		p.connect(pod, "pod", "10.244.1.0/24", "fd00:244:1::/64"),
		p.connect(outside, "outside", "192.0.2.0/24", "2001:db8::/64"),
		p.connect(server, "server", "10.244.2.0/24", "fd00:10::/64"),
		// The node has default routes, as nodes do: without any, it could not send to ClusterIPs.
		addDefaultRoute(p.NS, "outside", netip.MustParseAddr("192.0.2.2")),
		addDefaultRoute(p.NS, "outside", netip.MustParseAddr("2001:db8::2")),
	)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, server, "10.244.2.2:8080")
	serve(t, server, "[fd00:10::2]:8080")
	// On most nodes the network plugin translates, too. If nobody does, the kernel forgets all translations.
	if _, err := netnstest.Run(t, p.NS, `table inet plugin {
	chain post { type nat hook postrouting priority 110; ip saddr 198.51.100.0/24 masquerade; }
}`, netnstest.NFT(t), "-f", "-"); err != nil {
		t.Fatal(err)
	}
	return p
}

// connect links a namespace to the host. In each network, the host has the first address, and the
// namespace the second one and a default route.
func (p place) connect(ns *netns.NS, name string, networks ...string) error {
	errs := []error{netns.Link(netns.End{NS: ns, Name: "up"}, netns.End{NS: p.NS, Name: name})}
	for _, text := range networks {
		network := netip.MustParsePrefix(text)
		host := network.Addr().Next()
		errs = append(errs,
			p.AddAddress(name, netip.PrefixFrom(host, network.Bits())),
			ns.AddAddress("up", netip.PrefixFrom(host.Next(), network.Bits())),
			addDefaultRoute(ns, "up", host))
	}
	return errors.Join(errs...)
}

func addDefaultRoute(ns *netns.NS, link string, via netip.Addr) error {
	everywhere := netip.MustParsePrefix("0.0.0.0/0")
	if via.Is6() {
		everywhere = netip.MustParsePrefix("::/0")
	}
	return ns.AddRoute(netns.Route{To: everywhere, Link: link, Via: via})
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
		LocalTraffic: proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
	}
	var ports []*proxy.ServicePort
	for port := range oneService().All() {
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			p := *port
			p.Name.Name, p.Name.Port, p.Name.Protocol = fmt.Sprint("web-", n), strings.ToLower(string(protocol)), protocol
			p.Frontends = append([]proxy.Frontend(nil), p.Frontends...)
			for i := range p.Frontends {
				f := &p.Frontends[i]
				at := f.Addr
				if f.Kind == proxy.NodePort {
					f.Addr = netip.AddrPortFrom(at.Addr(), at.Port()+uint16(n))
					continue
				}
				for range n {
					at = netip.AddrPortFrom(at.Addr().Next(), at.Port())
				}
				f.Addr = at
			}
			ports = append(ports, &p)
		}
	}
	return proxy.NewSnapshot(node, ports...)
}

// wantService connects from everywhere to all frontends of web(n), except those that lacks names, if
// that is not nil.
func (p place) wantService(t *testing.T, when string, n int, lacks func(client string, clusterIP bool) bool) {
	t.Helper()
	// A client may choose the source port of an earlier flow, which continues to where it went.
	if err := p.Netlink().ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Fatal(err)
	}
	var asking sync.WaitGroup
	for from, ns := range p.clients {
		for _, network := range []string{"tcp", "udp"} {
			for _, to := range []string{
				fmt.Sprintf("10.96.0.%d:80", 10+n), fmt.Sprintf("[fd00:96::%x]:80", 0x10+n),
				fmt.Sprintf("192.0.2.1:%d", 30080+n), fmt.Sprintf("[2001:db8::1]:%d", 30080+n),
			} {
				if lacks != nil && lacks(from, strings.HasSuffix(to, ":80")) {
					continue
				}
				asking.Go(func() {
					if err := ask(t.Context(), ns, network, to); err != nil {
						t.Errorf("%s: %s from %s to %s: %v", when, network, from, to, err)
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
	t.Parallel()
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

// connectAll connects from the pod to the ClusterIPs of web(0), again and again, until it is stopped. It
// returns how many connections it has made in the family that had fewer.
func (p place) connectAll(t *testing.T) (stop func() (connections int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var n [2]int
	for i, to := range []string{"10.96.0.10:80", "[fd00:96::10]:80"} {
		asking.Go(func() {
			for ; n[i] == 0 || ctx.Err() == nil; n[i]++ {
				if err := ask(context.WithoutCancel(ctx), p.clients["pod"], "tcp", to); err != nil {
					t.Errorf("connection %d to %s during the switch: %v", n[i], to, err)
				}
			}
		})
	}
	stop = func() int {
		cancel()
		asking.Wait()
		return min(n[0], n[1])
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
	t.Parallel()
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

// An interface of the node gets addresses of the ranges of ClusterIPs, and loses them, while a backend runs:
// connections to them are for the node as long as it has the address, and dropped before and after.
func TestAddressOfTheRangeComesAndGoes(t *testing.T) {
	t.Parallel()
	const silence = 300 * time.Millisecond
	p := newPlace(t)
	serve(t, p.NS, "[::]:7777")
	for _, k := range kinds() {
		b := p.open(t, k, backends.Identity{})
		apply(t, b, web(0))
		var connecting sync.WaitGroup
		for _, address := range []string{"10.96.0.200/32", "fd00:96::200/128"} {
			connecting.Go(func() { p.wantComesAndGoes(t, k.name, netip.MustParsePrefix(address), silence) })
		}
		connecting.Wait()
		cleanUp(t, b)
	}
}

// wantComesAndGoes adds and removes an address, and connects before, meanwhile and after.
func (p place) wantComesAndGoes(t *testing.T, kind string, address netip.Prefix, silence time.Duration) {
	connect := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return ask(ctx, p.clients["pod"], "tcp", netip.AddrPortFrom(address.Addr(), 7777).String())
	}
	if err := connect(silence); !isTimeout(err) {
		t.Errorf("%s: connecting to %v before: got %v, want no answer", kind, address, err)
	}
	if err := p.AddAddress("pod", address); err != nil {
		t.Error(err)
	}
	if err := connect(patience); err != nil {
		t.Errorf("%s: connecting to the node's address %v: %v", kind, address, err)
	}
	if _, err := netnstest.Run(t, p.NS, "", "ip", "addr", "del", address.String(), "dev", "pod"); err != nil {
		t.Error(err)
	}
	if err := connect(silence); !isTimeout(err) {
		t.Errorf("%s: connecting to %v after: got %v, want no answer", kind, address, err)
	}
}

func isTimeout(err error) bool {
	failed, is := errors.AsType[net.Error](err)
	return is && failed.Timeout()
}

// With TPROXY, UDP flows of the node end with their Service, although connection tracking knows them.
func TestFlowOfTheNodeEndsWithItsService(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	tproxy := kinds()[3]
	b := p.open(t, tproxy, backends.Identity{})
	apply(t, b, web(0))
	clients := map[string]net.Conn{"10.96.0.10:80": nil, "[fd00:96::10]:80": nil}
	for to := range clients {
		c, err := p.Dial(t.Context(), "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		testenv.CloseAtEnd(t, c)
		clients[to] = c
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
	}
	if err := b.Apply(t.Context(), web(0), proxy.NewSnapshot(web(0).Node())); err != nil {
		t.Fatal(err)
	}
	for to, c := range clients {
		if _, err := io.WriteString(c, "?"); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: sending to %s after the Service is gone: got %v, want that the node drops it: %v", tproxy.name, to, err, unix.EPERM)
		}
	}
	cleanUp(t, b)
}
