package lab

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Host describes a host and its link to another one. Spaces separate addresses and ranges; an address has
// the length of its network.
type Host struct {
	Name string
	// Uplink is the name of the host at the other end of the interface eth0, which becomes a router. Empty:
	// the host has no eth0.
	Uplink string
	// Link is the interface at the other end; empty: it has the name of the host.
	Link string
	// Bridge is the bridge that Link is a port of; the first port makes it. Hairpin is the port's hairpin_mode.
	Bridge  string
	Hairpin bool
	// Addrs are the addresses of eth0.
	Addrs string
	// Gateway are the addresses of Link or of its bridge. The host's default route goes to the first one of
	// each family, or else to an address that no interface has.
	Gateway string
	// Owned are ranges that the host has all addresses of, and that the uplink routes to it.
	Owned string
	// Behind are further ranges that the uplink routes to the host, such as 0.0.0.0/0.
	Behind string
	// Sysctls are settings of the host, by their paths below /proc/sys.
	Sysctls map[string]string
	// Rules are tables of other programs, in the language of nft.
	Rules string
	// Serve are the ports of servers with the name of the host.
	Serve []uint16
}

// Lab is a network of hosts. Only the goroutine of its test adds hosts and servers.
type Lab struct {
	t       testing.TB
	hosts   map[string]*netns.NS
	bridges map[netns.End]bool
}

// New makes hosts, each after its uplink. It skips a test that cannot make network namespaces.
func New(t testing.TB, hosts ...Host) *Lab {
	t.Helper()
	l := &Lab{t: t, hosts: map[string]*netns.NS{}, bridges: map[netns.End]bool{}}
	for _, h := range hosts {
		l.Add(h)
	}
	return l
}

// NS returns the network namespace of a host.
func (l *Lab) NS(host string) *netns.NS {
	l.t.Helper()
	ns := l.hosts[host]
	if ns == nil {
		l.t.Fatalf("lab: unknown host %q, want one of %q", host, slices.Sorted(maps.Keys(l.hosts)))
	}
	return ns
}

// Add adds a host, and returns its network namespace.
func (l *Lab) Add(h Host) *netns.NS {
	l.t.Helper()
	if l.hosts[h.Name] != nil {
		l.t.Fatalf("lab: there is a host %q already", h.Name)
	}
	ns := netnstest.NewNS(l.t)
	l.hosts[h.Name] = ns
	var errs []error
	if h.Uplink != "" {
		errs = append(errs, l.attach(h, ns))
	}
	for name, value := range h.Sysctls {
		errs = append(errs, ns.Sysctl(name, value))
	}
	if err := errors.Join(errs...); err != nil {
		l.t.Fatalf("lab: host %s: %v", h.Name, err)
	}
	if h.Rules != "" {
		_, err := netnstest.Run(l.t, ns, h.Rules, netnstest.NFT(l.t), "-f", "-")
		testenv.NoError(l.t, err)
	}
	for _, port := range h.Serve {
		l.Serve(h.Name, h.Name, port)
	}
	return ns
}

// Serve starts a server for TCP and UDP at all addresses of a host. It ends with the test at the latest.
func (l *Lab) Serve(host, name string, port uint16) *Server {
	l.t.Helper()
	s, err := serve(l.t.Context(), l.NS(host), name, port)
	if err != nil {
		l.t.Fatalf("lab: server %s: %v", name, err)
	}
	testenv.CloseAtEnd(l.t, s)
	return s
}
