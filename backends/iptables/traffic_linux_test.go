package iptables

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// servedHosts is how many addresses the server of a row has.
const servedHosts = 8

// newRow puts a client on one side of a stage and a server with several addresses
// on the other.
func newRow(t *testing.T, s *stage) (client *netns.NS) {
	t.Helper()
	client, server := netnstest.NewNS(t), netnstest.NewNS(t)
	everywhere, left, right := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.0.0.1")
	steps := []error{
		netns.Link(netns.End{NS: client, Name: "up"}, netns.End{NS: s.ns, Name: "clients"}),
		netns.Link(netns.End{NS: server, Name: "up"}, netns.End{NS: s.ns, Name: "servers"}),
		s.ns.AddAddress("clients", netip.PrefixFrom(left, 24)),
		s.ns.AddAddress("servers", netip.PrefixFrom(right, 16)),
		client.AddAddress("up", netip.PrefixFrom(left.Next(), 24)),
		client.AddRoute(netns.Route{To: everywhere, Link: "up", Via: left}),
		// What is not translated is lost at the server.
		s.ns.AddRoute(netns.Route{To: everywhere, Link: "servers", Via: hostIP(v1.IPv4Protocol, 2)}),
		client.Sysctl("net/ipv4/ip_local_port_range", "1024 65535"),
		client.Sysctl("net/ipv4/tcp_tw_reuse", "1"),
		s.ns.Forward(),
	}
	for i := range servedHosts {
		steps = append(steps, server.AddAddress("up", netip.PrefixFrom(hostIP(v1.IPv4Protocol, 2+i), 16)))
	}
	steps = append(steps, server.AddRoute(netns.Route{To: everywhere, Link: "up", Via: right}))
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	listener, err := server.Listen(t.Context(), "tcp", "0.0.0.0:8080")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { sayHello(listener) })
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	return client
}

// sayHello writes one byte to everybody until the listener is closed.
func sayHello(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // a client that has gone
		}
		_, _ = c.Write([]byte{'!'}) // the client notices where that fails
		_ = c.Close()
	}
}

// hear connects and waits for the byte.
func hear(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // nothing was written
	if tcp, ok := c.(*net.TCPConn); ok {
		err = tcp.SetLinger(0) // no TIME_WAIT, which uses up ports
	}
	if deadline, ok := ctx.Deadline(); ok {
		err = errors.Join(err, c.SetDeadline(deadline))
	}
	if err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// While endpoints come and go, all of them at times, and other services too, a
// client is answered or refused: it neither waits in vain nor is sent elsewhere.
func TestTrafficMeetsCommits(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		r := testenv.Random(t)
		client := newRow(t, s)
		vip := newPort(v1.IPv4Protocol, 0, 0)
		s.apply(t, proxy.NewSnapshot(testNode(), vip))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var answered, refusedOnes atomic.Int64
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				err := client.Do(func() error {
					for ctx.Err() == nil {
						switch err := hear(context.WithoutCancel(ctx), vip.Frontends[0].Addr.String()); {
						case err == nil:
							answered.Add(1)
						case errors.Is(err, unix.ECONNREFUSED):
							refusedOnes.Add(1)
						default:
							t.Error(err)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		commits, begun := 0, time.Now()
		showsSomething := func() bool { return answered.Load() >= 20 && refusedOnes.Load() >= 20 && commits >= 20 }
		for ; ctx.Err() == nil && (time.Since(begun) < 2*time.Second || !showsSomething()); commits++ {
			next := newPort(v1.IPv4Protocol, 0, r.IntN(4))
			for i := range next.Cluster {
				next.Cluster[i] = &endpoints.Endpoint{Addr: netip.AddrPortFrom(hostIP(v1.IPv4Protocol, 2+r.IntN(servedHosts)), 8080)}
			}
			s.apply(t, proxy.NewSnapshot(testNode(), append(world(v1.IPv4Protocol, 1+r.IntN(3), 1)[1:], next)...))
		}
		cancel()
		asking.Wait()
		t.Logf("%d connections were answered and %d refused during %d commits", answered.Load(), refusedOnes.Load(), commits)
		if !showsSomething() {
			t.Error("that shows nothing")
		}
	})
}
