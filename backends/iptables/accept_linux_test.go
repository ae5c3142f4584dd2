package iptables

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// servedPort is a service port with a node port, and an endpoint that stagetest.NewRow serves.
func servedPort() *proxy.ServicePort {
	port := newPort(v1.IPv4Protocol, 0, 1)
	port.Cluster[0] = &endpoints.Endpoint{Addr: netip.AddrPortFrom(stagetest.HostIP(v1.IPv4Protocol, 2), 8080), Ready: true, Serving: true}
	port.Frontends = append(port.Frontends, stagetest.NodePort(v1.IPv4Protocol, 30_000))
	return port
}

// connect returns the error of a connection from a namespace, which may take some time.
func connect(t *testing.T, from *netns.NS, address string, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return from.Do(func() error { return stagetest.Ask(ctx, netip.Addr{}, address) })
}

// reachable is how long a connection may take that must succeed, and unreachable how long one
// is tried that must not.
const reachable, unreachable = 30 * time.Second, 300 * time.Millisecond

// On a node whose firewall drops by default, clients outside reach node ports whose endpoints
// are on other nodes, and the ports for health checks as long as a Service has them.
func TestFirewallThatDropsByDefault(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		client := newRow(t, s)
		s.Lab.Serve("node", "node", 32_000)
		for _, args := range [][]string{
			{"-P", "FORWARD", "DROP"},
			{"-A", "INPUT", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"}, {"-P", "INPUT", "DROP"},
		} {
			s.run(t, "", "iptables", args...)
		}
		const nodePort, health, pod = "192.0.2.1:30000", "192.0.2.1:32000", "10.0.0.2:8080"
		port := servedPort()
		second := *port
		second.Name.Port, second.Frontends = "second", nil
		port.HealthCheckNodePort, second.HealthCheckNodePort = 32_000, 32_000
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), port, &second))
		for _, address := range []string{nodePort, health} {
			if err := connect(t, client, address, reachable); err != nil {
				t.Errorf("%s: %v", address, err)
			}
		}
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), &second))
		if err := connect(t, client, health, reachable); err != nil {
			t.Errorf("the health check when one of two ports is gone: %v", err)
		}
		s.Apply(t, proxy.NewSnapshot(stagetest.Node()))
		for _, address := range []string{nodePort, health, pod} {
			if err := connect(t, client, address, unreachable); err == nil {
				t.Errorf("%s is reachable, want the firewall to drop its packets", address)
			}
		}
	})
}

// Each attempt to connect to a Service without endpoints is refused at once, also to ports that
// it does not have: the kernel limits ICMP errors, but not resets.
func TestRefusedWithoutLimit(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		client := newRow(t, s)
		testenv.NoError(t, s.NS.Sysctl("net/ipv4/icmp_ratelimit", "1000"))
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), newPort(v1.IPv4Protocol, 0, 0)))
		for name, from := range map[string]*netns.NS{"client": client, "node": s.NS} {
			for i := range 50 {
				address := netip.AddrPortFrom(stagetest.ClusterIP(v1.IPv4Protocol, 0), 80+uint16(i%2)).String()
				if err := connect(t, from, address, reachable); !errors.Is(err, unix.ECONNREFUSED) {
					t.Fatalf("%s: attempt %d at %s: got %v, want connection refused", name, i, address, err)
				}
			}
		}
	})
}

// An address of the service range that an interface of the node has belongs to the program that
// listens there. Other unused addresses are dropped.
func TestOwnAddressInServiceRange(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		client := newRow(t, s)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), servedPort()))
		own := stagetest.ClusterIP(v1.IPv4Protocol, 77)
		testenv.NoError(t, s.NS.AddAddress("lo", netip.PrefixFrom(own, 32)))
		address := netip.AddrPortFrom(own, 53).String()
		s.Lab.Serve("node", "node", 53)
		for name, from := range map[string]*netns.NS{"client": client, "node": s.NS} {
			if err := connect(t, from, address, reachable); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			unused := netip.AddrPortFrom(own.Next(), 53).String()
			if err := connect(t, from, unused, unreachable); !os.IsTimeout(err) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s to an unused address: got %v, want that its packets are dropped", name, err)
			}
		}
	})
}
