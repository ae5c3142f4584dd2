package nftables

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
)

// tcpPatience bounds waits for TCP; a second attempt to connect comes after a second.
const tcpPatience = 20 * time.Second

// What becomes of connections to an endpoint that has left the API, and of attempts to
// connect to one that never answered.
func TestTCPPolicies(t *testing.T) {
	for name, tc := range map[string]struct {
		policy                    conntrack.TCPPolicy
		isReset, connectsAnywhere bool
	}{
		"keep":           {conntrack.KeepTCP, false, false},
		"drop half-open": {conntrack.DropHalfOpenTCP, false, true},
		"reset":          {conntrack.ResetTCP, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTCPStreet(t, tc.policy)
			s.lead(t, s.Hosts[0])
			conn := s.dial(t, tcpPatience)
			s.echoes(t, conn, s.Hosts[0])
			s.lead(t, s.silent) // The first one terminates.
			s.echoes(t, conn, s.Hosts[0])
			connected := make(chan net.Conn, 1)
			limit := tcpPatience
			if !tc.connectsAnywhere {
				limit = 3 * time.Second
			}
			go func() { connected <- s.dial(t, limit) }()
			s.awaitFlow(t, s.silent)

			s.inAPI.Store(false)
			s.lead(t, s.Hosts[1])
			late := <-connected
			if (late != nil) != tc.connectsAnywhere {
				t.Errorf("an attempt that nobody answered led to a connection: %v, want %v", late != nil, tc.connectsAnywhere)
			}
			if late != nil {
				s.echoes(t, late, s.Hosts[1])
			}
			if !tc.isReset {
				s.echoes(t, conn, s.Hosts[0])
				return
			}
			if _, err := s.echo(conn); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the connection to who is gone gives error %v, want a reset", err)
			}
		})
	}
}

// A client that was there before its Service sends its attempts from one port.
func TestTCPAttemptBeforeItsService(t *testing.T) {
	for name, tc := range map[string]struct {
		policy   conntrack.TCPPolicy
		limit    time.Duration
		connects bool
	}{
		"keep":           {conntrack.KeepTCP, 3 * time.Second, false},
		"drop half-open": {conntrack.DropHalfOpenTCP, tcpPatience, true},
		"reset":          {conntrack.ResetTCP, tcpPatience, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTCPStreet(t, tc.policy)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node()))
			vip := netip.AddrPortFrom(s.silent, 80)
			connected := make(chan net.Conn, 1)
			go func() { connected <- s.dialTo(t, vip, tc.limit) }()
			s.awaitFlow(t, s.silent)
			port := stagetest.Port(v1.IPv4Protocol, 0, 0)
			route := stagetest.Forward(proxy.MasqueradeNever)
			port.Frontends = append(port.Frontends, proxy.Frontend{Kind: proxy.ExternalIP, Addr: vip, FromInside: route, FromOutside: route})
			port.Cluster = []*endpoints.Endpoint{{Addr: netip.AddrPortFrom(s.Hosts[1], 9090), Ready: true, Serving: true}}
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), port))
			conn := <-connected
			if (conn != nil) != tc.connects {
				t.Fatalf("the attempt led to a connection: %v, want %v", conn != nil, tc.connects)
			}
			if conn != nil {
				s.echoes(t, conn, s.Hosts[1])
			}
		})
	}
}

// tcpStreet is a street whose servers keep connections, and whose flows are cleaned.
type tcpStreet struct {
	*street
	inAPI  atomic.Bool // whether endpoints that left the pools are
	silent netip.Addr  // takes packets and says nothing
}

func newTCPStreet(t *testing.T, policy conntrack.TCPPolicy) *tcpStreet {
	t.Helper()
	s := &tcpStreet{street: newStreet(t, 2), silent: stagetest.HostIP(v1.IPv4Protocol, 9)}
	s.inAPI.Store(true)
	hardware, err := s.Server.HardwareAddr("up")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.NS.AddNeighbor("servers", s.silent, hardware); err != nil {
		t.Fatal(err)
	}
	var c *conntrack.Cleaner
	err = s.NS.Do(func() (err error) {
		c, err = conntrack.New(conntrack.Options{
			TCP: policy, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { return s.inAPI.Load() },
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // It was for this test alone.
	s.Backend = c.Wrap(s.Backend)
	echoNames(t, s.Server)
	return s
}

// echoNames answers each line of each connection with the address that was reached.
func echoNames(t *testing.T, server *netns.NS) {
	t.Helper()
	l, err := server.Listen(t.Context(), "tcp", "0.0.0.0:9090")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // The test ends.
			}
			context.AfterFunc(ctx, func() { _ = conn.Close() })
			all.Go(func() {
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					_, _ = fmt.Fprintln(conn, conn.LocalAddr()) // The client notices what is missing.
				}
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close() // Nobody has it any more.
		all.Wait()
	})
}

// lead makes one address the only endpoint.
func (s *tcpStreet) lead(t *testing.T, to netip.Addr) {
	t.Helper()
	port := stagetest.Port(v1.IPv4Protocol, 0, 0)
	port.Cluster = []*endpoints.Endpoint{{Addr: netip.AddrPortFrom(to, 9090), Ready: true, Serving: true}}
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), port))
}

// dial connects to the Service; nil if nobody answers in time.
func (s *tcpStreet) dial(t *testing.T, limit time.Duration) net.Conn {
	return s.dialTo(t, netip.AddrPortFrom(stagetest.ClusterIP(v1.IPv4Protocol, 0), 80), limit)
}

func (s *tcpStreet) dialTo(t *testing.T, to netip.AddrPort, limit time.Duration) net.Conn {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	conn, err := s.Client.Dial(ctx, "tcp", to.String())
	if err != nil {
		return nil
	}
	t.Cleanup(func() { _ = conn.Close() }) // All has been said.
	return conn
}

func (s *tcpStreet) echo(conn net.Conn) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(tcpPatience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(conn, "who?"); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

func (s *tcpStreet) echoes(t *testing.T, conn net.Conn, want netip.Addr) {
	t.Helper()
	if conn == nil {
		t.Fatal("there is no connection")
	}
	if got, err := s.echo(conn); err != nil || got != netip.AddrPortFrom(want, 9090).String()+"\n" {
		t.Errorf("%q answers (error %v), want %v", got, err, want)
	}
}

// awaitFlow waits until a flow leads to an address.
func (s *tcpStreet) awaitFlow(t *testing.T, server netip.Addr) {
	t.Helper()
	for end := time.Now().Add(tcpPatience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		flows, err := s.NS.Netlink().ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(flows, func(f *netlink.ConntrackFlow) bool { return f.Reverse.SrcIP.Equal(server.AsSlice()) }) {
			return
		}
	}
	t.Fatalf("no flow leads to %v", server)
}
