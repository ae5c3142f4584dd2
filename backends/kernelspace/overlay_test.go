package kernelspace_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

var sourceVIP = netip.MustParseAddr("10.0.0.250")

// newOverlay makes a machine with an overlay network that knows the pods of node-2, 10.1.0.0/24.
func newOverlay(t *testing.T) *machine { return newOverlayOf(t, newest()) }

func newOverlayOf(t *testing.T, version hcn.Version) *machine {
	m := newMachine(t, version)
	m.RemoveNetwork(m.network)
	m.addNetwork(hcn.Network{Name: networkName, Type: "overlay", Subnets: []netip.Prefix{subnet()}, RemoteSubnets: []hcn.RemoteSubnet{
		{Prefix: netip.MustParsePrefix("10.1.0.0/24"), ProviderAddress: netip.MustParseAddr("172.18.0.3")},
	}})
	m.options.Families = []v1.IPFamily{v1.IPv4Protocol}
	m.options.SourceVIPs, m.options.HostMAC = []netip.Addr{sourceVIP}, "00-15-5D-00-00-01"
	if _, err := m.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.restart()
	return m
}

const sourceLine = "endpoint local 10.0.0.250 mac 00-15-5D-00-00-01"

// An overlay network needs the endpoint that load balancers send from, one for each ClusterIP, and the
// address of its node for each endpoint of a pod elsewhere.
func TestOverlay(t *testing.T) {
	m := newOverlay(t)
	p := service(1, local(1), remote(1))
	m.apply(p)
	want := []string{
		sourceLine,
		"endpoint remote 10.96.0.1 mac 00-15-5D-00-00-01 provider 172.18.0.2",
		"endpoint remote 10.1.0.1 mac 02-11-0A-01-00-01 provider 172.18.0.3",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 10.0.0.250 to local 10.0.0.1; remote 10.1.0.1",
	}
	m.want("overlay", want...)
	m.restart()
	if n := m.writes(func() { m.apply(p) }); n != 0 {
		t.Errorf("after a restart: got %d writes, want 0", n)
	}
	m.apply()
	m.want("no Service", sourceLine)
	if err := m.backend.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	m.want("after Cleanup")
}

// An endpoint with an address of another node has that as its provider, and load balancers that use it
// send from the node's address.
func TestOverlayHostNetwork(t *testing.T) {
	m := newOverlay(t)
	host := remote(1)
	host.Addr = netip.MustParseAddrPort("172.18.0.3:8080")
	m.apply(service(1, host, remote(1)))
	m.want("host network", sourceLine,
		"endpoint remote 10.96.0.1 mac 00-15-5D-00-00-01 provider 172.18.0.2",
		"endpoint remote 10.1.0.1 mac 02-11-0A-01-00-01 provider 172.18.0.3",
		"endpoint remote 172.18.0.3 mac 02-11-AC-12-00-03 provider 172.18.0.3",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to remote 10.1.0.1; remote 172.18.0.3")
}

// Nothing waits for the remote subnets of an overlay network: what is known is programmed at once,
// and the rest is set right soon after a subnet appears.
func TestOverlayDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newOverlay(t)
		later := remote(256) // 10.1.1.0, of a node that just joined
		start := time.Now()
		m.apply(service(1, remote(1)), service(2, later))
		if took := time.Since(start); took != 0 {
			t.Errorf("first Apply: took %v, want no wait", took)
		}
		if !strings.Contains(m.Dump(), "endpoint remote 10.1.1.0 mac 02-11-0A-01-01-00 provider 172.18.0.2\n") {
			t.Errorf("without a subnet: got\n%s\nwant the node's own address as provider", m.Dump())
		}
		m.SetRemoteSubnets(m.network,
			hcn.RemoteSubnet{Prefix: netip.MustParsePrefix("10.1.0.0/24"), ProviderAddress: netip.MustParseAddr("172.18.0.3")},
			hcn.RemoteSubnet{Prefix: netip.MustParsePrefix("10.1.1.0/24"), ProviderAddress: netip.MustParseAddr("172.18.0.4")})
		time.Sleep(time.Second)
		if !m.drifted() {
			t.Fatal("after a second: got no drift, want some: a subnet was missing")
		}
		m.resync()
		m.want("afterwards", sourceLine,
			"endpoint remote 10.96.0.1 mac 00-15-5D-00-00-01 provider 172.18.0.2",
			"endpoint remote 10.96.0.2 mac 00-15-5D-00-00-01 provider 172.18.0.2",
			"endpoint remote 10.1.0.1 mac 02-11-0A-01-00-01 provider 172.18.0.3",
			"endpoint remote 10.1.1.0 mac 02-11-0A-01-01-00 provider 172.18.0.4",
			"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 10.0.0.250 to remote 10.1.0.1",
			"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 10.0.0.250 to remote 10.1.1.0")
	})
}

// The subnet of a node that has just joined is read when the first endpoint there needs it.
func TestOverlayReadsNewSubnets(t *testing.T) {
	m := newOverlay(t)
	m.apply(service(1, remote(1)))
	m.SetRemoteSubnets(m.network,
		hcn.RemoteSubnet{Prefix: netip.MustParsePrefix("10.1.0.0/16"), ProviderAddress: netip.MustParseAddr("172.18.0.3")})
	m.apply(service(1, remote(1), remote(256)))
	if !strings.Contains(m.Dump(), "10.1.1.0 mac 02-11-0A-01-01-00 provider 172.18.0.3") {
		t.Errorf("got\n%s\nwant the provider of the new subnet", m.Dump())
	}
}

// What an overlay network needs is an error if it is missing; so is IPv6.
func TestOverlayRequirements(t *testing.T) {
	m := newOverlay(t)
	m.options.HostMAC = ""
	m.restart()
	if err := m.try(); !errors.Is(err, proxy.ErrUnsupported) {
		t.Errorf("no MAC address: got error %v, want %v", err, proxy.ErrUnsupported)
	}
	m = newOverlay(t)
	noAddress := proxy.NewSnapshot(&proxy.Node{Name: "node-1"}, service(1, local(1)))
	if _, ok := errors.AsType[proxy.PortErrors](m.applySnapshot(noAddress)); !ok {
		t.Error("node without address: got no error of the port, want one")
	}
	m.options.Families = nil
	m.restart()
	six := service(1, local(1))
	six.Name.Family = v1.IPv6Protocol
	six.Frontends[0].Addr, six.Cluster = netip.MustParseAddrPort("[fd00:96::1]:80"), nil
	six.Frontends[0].FromInside, six.Frontends[0].FromOutside = proxy.TrafficRoute{Action: proxy.Reject}, proxy.TrafficRoute{Action: proxy.Reject}
	if err := m.try(six); !errors.Is(err, proxy.ErrUnsupported) {
		t.Errorf("IPv6: got error %v, want %v", err, proxy.ErrUnsupported)
	}
	m = newOverlay(t)
	m.fail(-1, denied(), "CreateEndpoint")
	if err := m.try(service(1, local(1))); err == nil || errors.Is(err, backends.ErrUnavailable) {
		t.Errorf("no source endpoint: got error %v, want one", err)
	}
	m.SetFault(nil)
	m.apply(service(1, local(1)))
	m.want("the source endpoint again", "endpoint local 10.0.0.250 mac 00-15-5D-00-00-01", "endpoint remote 10.96.0.1 mac 00-15-5D-00-00-01 provider 172.18.0.2",
		"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 10.0.0.250 to local 10.0.0.1")
}

// With Options.IPv4Fallback, service ports of IPv6 are not served where HNS or the network has no IPv6, and
// fail nowhere. The node has one problem then, if there are such ports.
func TestIPv4Fallback(t *testing.T) {
	six := service(1)
	six.Name.Family = v1.IPv6Protocol
	six.Frontends = nil
	six.Cluster = []*endpoints.Endpoint{{Addr: netip.MustParseAddrPort("[fd00::1]:8080"), Local: true, Ready: true, Serving: true}}
	six = with(six, frontend(proxy.ClusterIP, "fd00:96::1", 80))
	for what, m := range map[string]*machine{"overlay": newOverlay(t), "HNS 9.5": newMachine(t, server2019()), "none": newMachine(t, newest())} {
		m.options.Families, m.options.IPv4Fallback = nil, true
		m.restart()
		m.apply(service(1, local(1)))
		if p := m.problems(); len(p) != 0 {
			t.Errorf("%s, no port of IPv6: got problems %v, want none", what, p)
		}
		if what == "none" { // IPv6 is served, as soon as its endpoint exists
			m.addPod(six.Cluster[0].Addr.Addr())
			m.apply(service(1, local(1)), six)
			if got := strings.Count(m.Dump(), "fd00:96::1"); got != 1 {
				t.Errorf("dual stack: got %d load balancers of IPv6, want 1:\n%s", got, m.Dump())
			}
			continue
		}
		before := m.Dump()
		m.apply(service(1, local(1)), six)
		m.want(what, strings.Split(before, "\n")...)
		if p := m.problems(); len(p) != 1 || !strings.Contains(p[0].Error(), "no IPv6") {
			t.Errorf("%s: got problems %v, want one about IPv6", what, p)
		}
		m.wantLimits(six)
	}
}

// When the node gets another address, everything that has it follows: the provider of ClusterIPs and of
// pods without a remote subnet, and the source of load balancers that reach nodes.
func TestOverlayFollowsNodeAddress(t *testing.T) {
	m := newOverlay(t)
	host := remote(1)
	host.Addr = netip.MustParseAddrPort("172.18.0.3:8080")
	later := remote(256) // no remote subnet has it
	apply := func(address string) {
		t.Helper()
		node := theNode()
		node.Addresses = []netip.Addr{netip.MustParseAddr(address)}
		testenv.NoError(t, m.applySnapshot(proxy.NewSnapshot(node, service(1, host, remote(1)), service(2, later))))
	}
	want := func(what, address string) {
		t.Helper()
		m.want(what, sourceLine,
			"endpoint remote 10.96.0.1 mac 00-15-5D-00-00-01 provider "+address,
			"endpoint remote 10.96.0.2 mac 00-15-5D-00-00-01 provider "+address,
			"endpoint remote 10.1.0.1 mac 02-11-0A-01-00-01 provider 172.18.0.3",
			"endpoint remote 10.1.1.0 mac 02-11-0A-01-01-00 provider "+address,
			"endpoint remote 172.18.0.3 mac 02-11-AC-12-00-03 provider 172.18.0.3",
			"load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source "+address+" to remote 10.1.0.1; remote 172.18.0.3",
			"load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source "+address+" to remote 10.1.1.0")
	}
	apply("172.18.0.2")
	want("first", "172.18.0.2")
	apply("172.18.0.9")
	want("changed", "172.18.0.9")
	m.applied = proxy.Snapshot{}
	if n := m.writes(func() { apply("172.18.0.9") }); n != 0 {
		t.Errorf("resync: got %d writes, want 0", n)
	}
	m.restart()
	if n := m.writes(func() { apply("172.18.0.9") }); n != 0 {
		t.Errorf("restart: got %d writes, want 0", n)
	}
	m.restart()
	apply("172.18.0.10")
	want("changed while no process ran", "172.18.0.10")
}

// An EndpointSlice may have any address: the source address of load balancers, or another Service's
// ClusterIP. It does not take these endpoints from who needs them, in whatever order, and at no list.
func TestOverlayEndpointOfOtherRole(t *testing.T) {
	named := func(i int, a netip.Addr) *proxy.ServicePort {
		e := remote(1)
		e.Addr = netip.AddrPortFrom(a, 8080)
		return service(i, e)
	}
	const vip = "endpoint remote 10.96.0.2 mac 00-15-5D-00-00-01 provider 172.18.0.2"
	has := func(m *machine, when, line string) {
		t.Helper()
		if !slices.Contains(strings.Split(m.Dump(), "\n"), line) {
			t.Errorf("%s: dump:\n%s\nwant a line %s", when, m.Dump(), line)
		}
	}
	m := newOverlay(t)
	bad := named(1, sourceVIP)
	failed, _ := errors.AsType[proxy.PortErrors](m.try(bad, service(2, remote(1))))
	if failed[bad.Name] == nil || len(failed) != 1 || !strings.Contains(failed.Error(), sourceVIP.String()) {
		t.Errorf("source address as an endpoint: got error %v, want one of %s", failed, bad.Name)
	}
	has(m, "source address as an endpoint", sourceLine)
	bad = with(service(1, remote(1)), frontend(proxy.ExternalIP, sourceVIP.String(), 50_000))
	if failed, _ = errors.AsType[proxy.PortErrors](m.try(bad)); failed[bad.Name] == nil || strings.Contains(m.Dump(), "50000") {
		t.Errorf("source address as an external IP: got error %v, want one of %s:\n%s", failed, bad.Name, m.Dump())
	}

	m = newOverlay(t)
	m.apply(service(2, remote(1)))
	m.apply(service(2, remote(1)), named(3, clusterIP(2)))
	has(m, "ClusterIP as an endpoint", vip)
	m = newOverlay(t)
	all := []*proxy.ServicePort{named(1, clusterIP(2)), service(2, remote(1)), named(3, clusterIP(2))}
	m.apply(all...)
	has(m, "ClusterIP as an endpoint before", vip)
	m.resync()
	if n := m.writes(m.resync); n != 0 {
		t.Errorf("resync: got %d writes, want 0", n)
	}
	m.restart()
	if n := m.writes(func() { m.apply(all...) }); n != 0 {
		t.Errorf("restart: got %d writes, want 0", n)
	}
}

// Cleanup needs nothing but what was made: no option of an overlay network, and no network.
func TestCleanupNeedsNoOptions(t *testing.T) {
	clean := func(m *machine, what string) {
		t.Helper()
		m.restart()
		if err := m.backend.Cleanup(t.Context()); err != nil {
			t.Errorf("%s: Cleanup: %v", what, err)
		}
		m.want(what)
	}
	all := []*proxy.ServicePort{service(1, local(1), remote(1)), service(2, remote(1))}
	m := newOverlay(t)
	m.apply(all...)
	m.options.SourceVIPs, m.options.HostMAC = nil, ""
	clean(m, "overlay network without options")
	m = newOverlay(t)
	m.apply(all...)
	m.options.Network = "another"
	clean(m, "a network that does not exist")
	m = newOverlay(t)
	m.apply(all...)
	m.RemoveNetwork(m.network)
	clean(m, "network removed")
}
