package differential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// place is a host with a pod, another machine, and another node with an endpoint, which answers by TCP
// and UDP. All have addresses of both families.
type place struct {
	host
	clients map[string]*netns.NS
}

const (
	greeting = "hello"
	patience = 30 * time.Second
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
	testenv.NoError(t, err)
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
	testenv.NoError(t, err)
	c, err := server.ListenPacket(t.Context(), "udp", at)
	testenv.NoError(t, err)
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
				serving.Go(func() {
					defer accepted.Close() //nolint:errcheck // the client notices
					if _, err := io.WriteString(accepted, greeting); err == nil {
						_, _ = io.Copy(accepted, accepted)
					}
				})
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

// flow is a connection of TCP, or a socket of UDP, to a frontend.
type flow struct {
	net.Conn

	name string
}

// openFlows opens a flow from each client to each frontend of web(0).
func (p place) openFlows(t *testing.T) (all []flow) {
	t.Helper()
	for from, ns := range p.clients {
		for _, network := range []string{"tcp", "udp"} {
			for _, to := range frontends(0) {
				f := flow{name: fmt.Sprintf("%s from %s to %s", network, from, to)}
				if err := ns.Do(func() (err error) {
					f.Conn, err = (&net.Dialer{Timeout: patience}).DialContext(t.Context(), network, to)
					return err
				}); err != nil {
					t.Fatalf("%s: %v", f.name, err)
				}
				testenv.CloseAtEnd(t, f)
				if network == "tcp" {
					_, err := io.ReadFull(f, make([]byte, len(greeting)))
					if err != nil {
						t.Fatalf("%s: %v", f.name, err)
					}
				}
				if err := f.exchange(); err != nil {
					t.Fatalf("%s: %v", f.name, err)
				}
				all = append(all, f)
			}
		}
	}
	return all
}

// exchange sends a text, and waits for an answer of the same length: the server echoes it, or
// greets again.
func (f flow) exchange() error {
	if err := f.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(f, greeting); err != nil {
		return err
	}
	_, err := io.ReadFull(f, make([]byte, len(greeting)))
	return err
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
