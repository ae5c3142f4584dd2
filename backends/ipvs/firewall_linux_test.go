//go:build ipvs

package ipvs

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// dial connects from a namespace and closes the connection.
func dial(t *testing.T, from *netns.NS, to netip.AddrPort, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return from.Do(func() error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// On a node whose firewall drops by default, clients outside reach endpoints on other nodes, and health
// check node ports as long as a Service has them.
func TestFirewallThatDropsByDefault(t *testing.T) {
	s := newStage(t, Options{Families: []v1.IPFamily{v1.IPv4Protocol}})
	w := newTalkers(t, s, 1)
	for _, command := range []string{
		"iptables -P FORWARD DROP", "iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		"iptables -A INPUT -p tcp --dport 30000 -j ACCEPT", "iptables -P INPUT DROP",
	} {
		s.run(t, command)
	}
	health := addrPort("192.0.2.1", 32_000)
	l, err := s.NS.Listen(t.Context(), "tcp", health.String())
	testenv.NoError(t, err)
	defer l.Close() //nolint:errcheck // ends the test
	p := w.port(0, 0)
	p.Frontends = append(p.Frontends, stagetest.NodePort(v1.IPv4Protocol, 30_000))
	second := *p
	second.Name.Port, second.Frontends = "second", nil
	p.HealthCheckNodePort, second.HealthCheckNodePort = 32_000, 32_000
	s.Apply(t, snapshotOf(p, &second))
	w.reach(t, "at a node port", "tcp", addrPort("192.0.2.1", 30_000), w.Hosts[0])
	for _, want := range []proxy.Snapshot{snapshotOf(p, &second), snapshotOf(&second)} {
		s.Apply(t, want)
		if err := dial(t, w.Client, health, 20*time.Second); err != nil {
			t.Errorf("health check node port of %d service ports: %v", want.Len(), err)
		}
	}
	s.Apply(t, snapshotOf())
	if err := dial(t, w.Client, health, 300*time.Millisecond); err == nil {
		t.Error("the former health check node port is reachable, want the firewall to drop its packets")
	}
}

// Each of many attempts to connect to a Service without endpoints is refused at once, also to ports
// that it does not have: the kernel limits ICMP errors, but not resets.
func TestRefusedWithoutLimit(t *testing.T) {
	s := newStage(t, Options{})
	w := newTalkers(t, s, 1)
	p := stagetest.Port(v1.IPv4Protocol, 0, 0)
	p.Frontends[0].FromInside, p.Frontends[0].FromOutside = proxy.TrafficRoute{Action: proxy.Reject}, proxy.TrafficRoute{Action: proxy.Reject}
	s.Apply(t, snapshotOf(p))
	begin, attempts := time.Now(), 200
	for i := range attempts {
		to := netip.AddrPortFrom(p.Frontends[0].Addr.Addr(), p.Frontends[0].Addr.Port()+uint16(i%2))
		for name, from := range map[string]*netns.NS{"client": w.Client, "node": s.NS} {
			if err := dial(t, from, to, 20*time.Second); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("%s: attempt %d at %v: got %v, want connection refused", name, i, to, err)
			}
		}
	}
	t.Logf("%d attempts each from a client and the node took %v", attempts, time.Since(begin))
}

// A program that switches forwarding off is noticed at once.
func TestForwardingIsRestored(t *testing.T) {
	s := newStage(t, Options{})
	s.Apply(t, snapshotOf(localPort(1)))
	s.waitsDuring(t, "forwarding of one interface", func() { s.run(t, "sysctl -qw net.ipv4.conf.lo.forwarding=0") })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begin, noticed := time.Now(), make(chan error, 1)
	go func() { noticed <- s.Backend.Abilities().WaitDrift(ctx) }()
	s.run(t, "sysctl -qw net.ipv4.ip_forward=0")
	if err := <-noticed; err != nil {
		t.Fatalf("WaitDrift: got error %v, want none", err)
	}
	t.Logf("noticed after %v, with the start of a program", time.Since(begin))
	s.Applied = proxy.Snapshot{}
	s.Apply(t, snapshotOf(localPort(1)))
	if got := s.run(t, "sysctl -n net.ipv4.ip_forward"); got != "1\n" {
		t.Errorf("ip_forward: got %q, want 1", got)
	}
}
