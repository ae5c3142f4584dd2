package backends_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// A port that no dataplane can serve is reported by name, and never rendered. For example,
// an unspecified address means all addresses of the node.
func TestApplyRefusesFaultyPorts(t *testing.T) { //nolint:funlen // a table
	at := func(addr string) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) { p.Frontends[0].Addr = netip.MustParseAddrPort(addr) }
	}
	from := func(sources ...string) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) {
			p.Frontends[0].Restricted = true
			for _, s := range sources {
				p.Frontends[0].AllowedSources = append(p.Frontends[0].AllowedSources, netip.MustParsePrefix(s))
			}
		}
	}
	pools := func(cluster, local []*endpoints.Endpoint) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) { p.Cluster, p.Local = cluster, local }
	}
	pool := func(addr string) []*endpoints.Endpoint {
		return []*endpoints.Endpoint{{Addr: netip.MustParseAddrPort(addr)}}
	}
	nodePort := func(addr string) proxy.Frontend {
		return proxy.Frontend{Kind: proxy.NodePort, Addr: netip.MustParseAddrPort(addr)}
	}
	ofIPv6 := func(cluster []*endpoints.Endpoint) func(*proxy.ServicePort) {
		return func(p *proxy.ServicePort) {
			p.Name.Family, p.Frontends[0].Addr, p.Cluster = v1.IPv6Protocol, netip.MustParseAddrPort("[fd00:96::1]:80"), cluster
		}
	}
	four, six, mapped := pool("10.0.0.1:80"), pool("[fd00:10::1]:80"), pool("[::ffff:10.0.0.1]:80")
	for _, c := range []struct {
		name   string
		change func(*proxy.ServicePort)
		bad    bool
	}{
		{"nothing", func(*proxy.ServicePort) {}, false},
		{"a node port", func(p *proxy.ServicePort) { p.Frontends = append(p.Frontends, nodePort("0.0.0.0:30000")) }, false},
		{"a node port of the other family", func(p *proxy.ServicePort) { p.Frontends = append(p.Frontends, nodePort("[::]:30000")) }, true},
		{"an unspecified frontend", at("0.0.0.0:80"), true},
		{"a frontend in IPv6 form", at("[::ffff:10.128.0.1]:80"), true},
		{"a frontend of the other family", at("[fd00:96::1]:80"), true},
		{"no frontend address", func(p *proxy.ServicePort) { p.Frontends[0].Addr = netip.AddrPort{} }, true},
		{"no allowed sources", from(), false},
		{"source ranges", from("192.0.2.0/24", "198.51.100.0/25"), false},
		{"source ranges of the other family", from("2001:db8::/32"), true},
		{"a source range that is not valid", func(p *proxy.ServicePort) {
			p.Frontends[0].Restricted, p.Frontends[0].AllowedSources = true, make([]netip.Prefix, 1)
		}, true},
		{"a source range that is longer than an address", func(p *proxy.ServicePort) {
			p.Frontends[0].Restricted, p.Frontends[0].AllowedSources = true, []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("192.0.2.0"), 33)}
		}, true},
		{"both pools", pools(four, four), false},
		{"endpoints in IPv6 form", pools(mapped, mapped), true},
		{"endpoints of the other family", pools(six, four), true},
		{"local endpoints of the other family", pools(four, six), true},
		{"a route without endpoints", pools(nil, four), true},
		{"another protocol", func(p *proxy.ServicePort) { p.Name.Protocol = "ICMP" }, true},
		{"no family", func(p *proxy.ServicePort) { p.Name.Family = "" }, true},
		{"another family, and no addresses", func(p *proxy.ServicePort) { p.Name.Family, p.Frontends, p.Cluster = "IPv5", nil, nil }, true},
		{"IPv6", ofIPv6(six), false},
		{"IPv6 and endpoints in a zone", ofIPv6(pool("[fe80::1%eth0]:80")), true},
		{"IPv6 and endpoints of IPv4 in its form", ofIPv6(mapped), true},
		{"endpoints without address", pools([]*endpoints.Endpoint{{}}, nil), true},
	} {
		// The target itself refuses none of these ports.
		b := backends.New(renderFake, newFakeKernel(t))
		good, faulty := plainPort(1), plainPort(2)
		c.change(faulty)
		err := b.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(nil, good))
		if err == nil {
			err = b.Apply(t.Context(), proxy.NewSnapshot(nil, good), proxy.NewSnapshot(nil, good, faulty))
		}
		failed, _ := errors.AsType[proxy.PortErrors](err)
		if (failed[faulty.Name] != nil) != c.bad || len(failed) > 1 || (err != nil) != c.bad {
			t.Errorf("%s: got error %v, want one that names the port: %t", c.name, err, c.bad)
		}
	}
}

// plainPort has a frontend and one endpoint.
func plainPort(i int) *proxy.ServicePort {
	return &proxy.ServicePort{
		Name:      portName(i),
		Frontends: []proxy.Frontend{{Addr: frontendAddr(i), FromInside: proxy.TrafficRoute{Action: proxy.Forward}}},
		Cluster:   []*endpoints.Endpoint{{Addr: endpointAddr(i, 80)}},
	}
}

// refuses returns a Check that refuses one port.
func refuses(name proxy.ServicePortName) func(backends.Env, *proxy.ServicePort) error {
	return func(_ backends.Env, p *proxy.ServicePort) error {
		if p.Name == name {
			return errPoison
		}
		return nil
	}
}

// A port that Check refuses stays as it was, or does not exist, and all others are
// programmed.
func TestApplyAsksTheTarget(t *testing.T) {
	k, name := newFakeKernel(t), portName(2)
	k.able.Check = refuses(name)
	b := backends.New(renderFake, k)
	node, other := &proxy.Node{Zone: "a"}, &proxy.Node{Zone: "b"}
	first := proxy.NewSnapshot(node, plainPort(1))
	for _, step := range []struct {
		name     string
		old, new proxy.Snapshot
		lost     bool
	}{
		{"from the zero snapshot", proxy.Snapshot{}, proxy.NewSnapshot(node, plainPort(1), plainPort(2), plainPort(3)), false},
		{"removed", proxy.NewSnapshot(node, plainPort(1), plainPort(3)), first, false},
		{"added alone", first, proxy.NewSnapshot(node, plainPort(1), plainPort(2)), false},
		{"added with another", first, proxy.NewSnapshot(node, plainPort(1), plainPort(2), plainPort(3)), false},
		{"on another node", proxy.NewSnapshot(node, plainPort(1), plainPort(3)), proxy.NewSnapshot(other, plainPort(1), plainPort(2)), false},
		{"on another node, as before", proxy.NewSnapshot(other, plainPort(1), plainPort(2)), proxy.NewSnapshot(node, plainPort(1), plainPort(2)), true},
		{"from the zero snapshot, with a port", proxy.Snapshot{}, proxy.NewSnapshot(other, plainPort(1), plainPort(2)), false},
	} {
		err := b.Apply(t.Context(), step.old, step.new)
		_, refused := step.new.Get(name)
		failed, _ := errors.AsType[proxy.PortErrors](err)
		if errors.Is(failed[name], errPoison) != refused || (err != nil) != refused || errors.Is(err, proxy.ErrDataplaneLost) != step.lost {
			t.Errorf("%s: got error %v, want one that names the port: %t, and wraps ErrDataplaneLost: %t", step.name, err, refused, step.lost)
		}
		if diff := cmp.Diff(wanted(step.new.Revert(proxy.Snapshot{}, name)), k.objects); diff != "" && !step.lost {
			t.Errorf("%s: objects in the kernel (-want +got):\n%s", step.name, diff)
		}
	}
}

// The error names the ports that Check refuses and those that Commit refuses.
func TestApplyNamesAllThatFail(t *testing.T) {
	k := newFakeKernel(t)
	k.able.Check, k.poisoned = refuses(portName(2)), true
	err := backends.New(renderFake, k).Apply(t.Context(), proxy.Snapshot{}, inZone("a", plainPort(1), plainPort(2), refused(3)))
	if diff := cmp.Diff([]string{portName(2).String(), portName(3).String()}, failedPorts(err)); diff != "" {
		t.Errorf("ports that failed (-want +got):\n%s", diff)
	}
}
