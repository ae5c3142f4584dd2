package nftables

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
)

// tcpPatience bounds waits for TCP; a client sends the second SYN after a second.
const tcpPatience = 20 * time.Second

// The policy decides about connections to an endpoint that was removed from the API, and
// about attempts to connect to one that never replied.
func TestTCPPolicies(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy                    conntrack.TCPPolicy
		isReset, connectsAnywhere bool
	}{
		"keep":           {conntrack.KeepTCP, false, false},
		"drop half-open": {conntrack.DropHalfOpenTCP, false, true},
		"reset":          {conntrack.ResetTCP, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTCPTestbed(t, tc.policy)
			s.setEndpoint(t, s.Hosts[0])
			conn := s.dial(t, tcpPatience)
			s.echoes(t, conn, s.Hosts[0])
			s.setEndpoint(t, s.silent) // The first endpoint is terminating.
			s.echoes(t, conn, s.Hosts[0])
			connected := make(chan *lab.Conn, 1)
			limit := tcpPatience
			if !tc.connectsAnywhere {
				limit = 3 * time.Second
			}
			go func() { connected <- s.dial(t, limit) }()
			s.awaitFlow(t, s.silent)

			s.inAPI.Store(false)
			s.setEndpoint(t, s.Hosts[1])
			late := <-connected
			if (late != nil) != tc.connectsAnywhere {
				t.Errorf("attempt without a reply led to a connection: got %v, want %v", late != nil, tc.connectsAnywhere)
			}
			if late != nil {
				s.echoes(t, late, s.Hosts[1])
			}
			if !tc.isReset {
				s.echoes(t, conn, s.Hosts[0])
				return
			}
			if _, err := conn.Ask(t.Context()); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("connection to the removed endpoint: got error %v, want %v", err, syscall.ECONNRESET)
			}
		})
	}
}

// A client that starts before its Service is added sends all attempts from one port. The
// policy decides whether an attempt connects after the Service was added.
func TestTCPAttemptBeforeItsService(t *testing.T) {
	t.Parallel()
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
			s := newTCPTestbed(t, tc.policy)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node()))
			vip := netip.AddrPortFrom(s.silent, 80)
			connected := make(chan *lab.Conn, 1)
			go func() { connected <- s.dialTo(t, vip, tc.limit) }()
			s.awaitFlow(t, s.silent)
			port := stagetest.Port(v1.IPv4Protocol, 0, 0)
			route := stagetest.Forward(proxy.MasqueradeNever)
			port.Frontends = append(port.Frontends, proxy.Frontend{Kind: proxy.ExternalIP, Addr: vip, FromInside: route, FromOutside: route})
			port.Cluster = []*endpoints.Endpoint{{Addr: netip.AddrPortFrom(s.Hosts[1], 9090), Ready: true, Serving: true}}
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), port))
			conn := <-connected
			if (conn != nil) != tc.connects {
				t.Fatalf("attempt led to a connection: got %v, want %v", conn != nil, tc.connects)
			}
			if conn != nil {
				s.echoes(t, conn, s.Hosts[1])
			}
		})
	}
}

// tcpTestbed is a testbed whose servers keep connections, and whose flows are cleaned.
type tcpTestbed struct {
	*testbed
	inAPI  atomic.Bool // whether endpoints that left the pools are still in the API
	silent netip.Addr  // an address that receives packets and never replies
}

func newTCPTestbed(t *testing.T, policy conntrack.TCPPolicy) *tcpTestbed {
	t.Helper()
	s := &tcpTestbed{testbed: newTestbed(t, 2), silent: stagetest.HostIP(v1.IPv4Protocol, 9)}
	s.inAPI.Store(true)
	hardware, err := s.Server.HardwareAddr("eth0")
	testenv.NoError(t, err)
	testenv.NoError(t, s.NS.AddNeighbor("servers", s.silent, hardware))
	var c *conntrack.Cleaner
	err = s.NS.Do(func() (err error) {
		c, err = conntrack.New(conntrack.Options{
			TCP: policy, InAPI: func(proxy.ServicePortName, netip.AddrPort) bool { return s.inAPI.Load() },
		})
		return err
	})
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // Only this test uses it.
	s.Flows = c
	s.Lab.Serve("servers", "server", 9090)
	return s
}

// setEndpoint makes one address the only endpoint.
func (s *tcpTestbed) setEndpoint(t *testing.T, to netip.Addr) {
	t.Helper()
	port := stagetest.Port(v1.IPv4Protocol, 0, 0)
	port.Cluster = []*endpoints.Endpoint{{Addr: netip.AddrPortFrom(to, 9090), Ready: true, Serving: true}}
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), port))
}

// dial connects to the Service. It returns nil if the connection fails or takes too long.
func (s *tcpTestbed) dial(t *testing.T, limit time.Duration) *lab.Conn {
	return s.dialTo(t, netip.AddrPortFrom(stagetest.ClusterIP(v1.IPv4Protocol, 0), 80), limit)
}

func (s *tcpTestbed) dialTo(t *testing.T, to netip.AddrPort, limit time.Duration) *lab.Conn {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	conn, err := lab.Dial(ctx, s.Client, "tcp", to.String())
	if err != nil {
		return nil
	}
	t.Cleanup(func() { _ = conn.Close() }) // All data was sent.
	return conn
}

func (s *tcpTestbed) echoes(t *testing.T, conn *lab.Conn, want netip.Addr) {
	t.Helper()
	if conn == nil {
		t.Fatal("connection: got none, want one")
	}
	if got, err := conn.Ask(t.Context()); err != nil || got.Own != netip.AddrPortFrom(want, 9090) {
		t.Errorf("server of the connection: got %+v, error %v, want %v", got, err, want)
	}
}

// awaitFlow waits until conntrack has a flow to an address.
func (s *tcpTestbed) awaitFlow(t *testing.T, server netip.Addr) {
	t.Helper()
	for end := time.Now().Add(tcpPatience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		flows, err := s.NS.Netlink().ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		testenv.NoError(t, err)
		if slices.ContainsFunc(flows, func(f *netlink.ConntrackFlow) bool { return f.Reverse.SrcIP.Equal(server.AsSlice()) }) {
			return
		}
	}
	t.Fatalf("flows to %v: got none after %v, want one", server, tcpPatience)
}
