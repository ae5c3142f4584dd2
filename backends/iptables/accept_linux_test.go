package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
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
	_, err := lab.Ask(ctx, from, "tcp", address)
	return err
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

// sendReset sends a TCP reset of no connection.
func sendReset(t *testing.T, ns *netns.NS, from, to netip.Addr) {
	t.Helper()
	packet := make([]byte, 40)
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_TCP
	copy(packet[12:], from.AsSlice())
	copy(packet[16:], to.AsSlice())
	tcp := packet[20:]
	binary.BigEndian.PutUint16(tcp, 8080)
	binary.BigEndian.PutUint16(tcp[2:], 40_000)
	tcp[12], tcp[13] = 5<<4, 1<<2
	sum := uint32(unix.IPPROTO_TCP + len(tcp))
	for i := 12; i < len(packet); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum+sum>>16))
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		return errors.Join(unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()}), unix.Close(fd))
	})
	testenv.NoError(t, err)
}

// dropped returns those rules of the chain for invalid packets that have dropped any.
func (s *stage) dropped(t *testing.T) (rules []string) {
	t.Helper()
	for line := range strings.Lines(s.run(t, "", "iptables-save", "-c", "-t", "filter")) {
		counter, rule, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(rule, "-A VIPKIT-FORWARD ") && strings.HasSuffix(rule, " -j DROP") && counter != "[0:0]" {
			rules = append(rules, strings.TrimPrefix(rule, "-A VIPKIT-FORWARD "))
		}
	}
	return rules
}

// Packets of no connection are dropped if an endpoint sends them, because a client would get
// them with the endpoint's own address, and if their destination is a ClusterIP, because they
// are not translated. Other such packets pass.
func TestInvalidPackets(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		client := newRow(t, s)
		port := newPort(v1.IPv4Protocol, 0, 1)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), port))
		pod, outside, noService := stagetest.HostIP(v1.IPv4Protocol, 3), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.1")
		for i, c := range []struct {
			from, to netip.Addr
			want     string
		}{
			{outside, noService, ""},
			{pod, noService, "-s 10.0.0.0/9 -m conntrack --ctstate INVALID -j DROP"},
			{outside, port.Frontends[0].Addr.Addr(), "-d 10.128.0.0/9 -m conntrack --ctstate INVALID -j DROP"},
		} {
			sendReset(t, client, c.from, c.to)
			var got []string
			for deadline := time.Now().Add(30 * time.Second); len(got) < i && time.Now().Before(deadline); {
				got = s.dropped(t)
			}
			if len(got) != i || i > 0 && got[i-1] != c.want {
				t.Errorf("from %v to %v: rules that have dropped packets: got %q, want %d, the last one %q", c.from, c.to, got, i, c.want)
			}
		}
	})
}

// If the kernel's setting for invalid packets is liberal, nothing is dropped from the next
// resync on.
func TestInvalidPacketsWhereLiberal(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		const setting = "net/netfilter/nf_conntrack_tcp_be_liberal"
		for _, c := range []struct {
			value string
			want  bool
		}{{"0", true}, {"1", false}, {"0", true}} {
			testenv.NoError(t, s.NS.Sysctl(setting, c.value))
			s.Applied = proxy.Snapshot{}
			s.Apply(t, sampleSnapshot())
			testenv.Same(t, c.want, strings.Contains(s.dump(t), "--ctstate INVALID"), "%s is %s: rules for invalid packets", setting, c.value)
		}
	})
}

// A missing setting of the kernel is off.
func TestIsOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		err  error
		want bool
	}{
		{"0\n", nil, false}, {"1\n", nil, true}, {"2\n", nil, true},
		{"", &fs.PathError{Err: unix.ENOENT}, false}, {"", unix.EIO, false},
	} {
		got, err := isOn([]byte(c.text), c.err)
		if got != c.want || (err != nil) != (c.err != nil && !errors.Is(c.err, fs.ErrNotExist)) {
			t.Errorf("isOn(%q, %v): got %t, %v, want %t", c.text, c.err, got, err, c.want)
		}
	}
}
