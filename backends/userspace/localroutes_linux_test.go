package userspace_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// needLocalRoutes ends a test where BPF cannot be had, as in a user namespace.
func needLocalRoutes(t *testing.T, n network) {
	t.Helper()
	err := n.node.Do(func() error {
		b, err := userspace.New(userspace.Options{Capture: userspace.LocalRoutes})
		if err == nil {
			err = b.Close()
		}
		return err
	})
	if errors.Is(err, proxy.ErrUnsupported) && errors.Is(err, syscall.EPERM) {
		testenv.CannotRun(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ofKind makes the frontends of a snapshot ClusterIPs, or other addresses.
func ofKind(s proxy.Snapshot, kind proxy.FrontendKind) proxy.Snapshot {
	var ports []*proxy.ServicePort
	for p := range s.All() {
		p := *p
		p.Frontends = append([]proxy.Frontend(nil), p.Frontends...)
		for i := range p.Frontends {
			p.Frontends[i].Kind = kind
		}
		ports = append(ports, &p)
	}
	return proxy.NewSnapshot(s.Node(), ports...)
}

// A program of the node that listens at every address has the node's own addresses,
// and nothing of a Service: neither its ports nor others.
func TestHostListenerGetsNothingOfServices(t *testing.T) {
	for _, kind := range []proxy.FrontendKind{proxy.ClusterIP, proxy.ExternalIP} {
		t.Run(kind.String(), func(t *testing.T) {
			n := newNetwork(t)
			needLocalRoutes(t, n)
			n.serve(t, podServer)
			host := network{client: n.client, node: n.node, pod: n.node}
			for _, at := range []string{"0.0.0.0:80", "0.0.0.0:22"} {
				host.serve(t, at)
			}
			b := n.start(t, userspace.Options{Capture: userspace.LocalRoutes})
			apply(t, b, ofKind(snapshot(one), kind))
			n.wantAnswer(t, one)
			if server, _, _, err := n.ask(t, "10.96.0.1:22"); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("another port: got %q and error %v, want a refusal", server, err)
			}
			if server, _, _, err := n.ask(t, "10.244.1.1:80"); err != nil || server != "0.0.0.0:80" {
				t.Errorf("the node itself: got %q and error %v, want the program there", server, err)
			}
		})
	}
}

// An external address that the host has itself keeps its other ports.
func TestHostKeepsItsOwnAddress(t *testing.T) {
	n := newNetwork(t)
	needLocalRoutes(t, n)
	n.serve(t, podServer)
	host := network{client: n.client, node: n.node, pod: n.node}
	host.serve(t, "0.0.0.0:22")
	b := n.start(t, userspace.Options{Capture: userspace.LocalRoutes})
	external := ofKind(snapshot(one), proxy.ExternalIP)
	apply(t, b, external)
	if _, _, _, err := n.ask(t, "10.96.0.1:22"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("before the host has it: got error %v, want a refusal", err)
	}
	if err := n.node.AddAddress("clients", netip.MustParsePrefix("10.96.0.1/32")); err != nil {
		t.Fatal(err)
	}
	if !b.Drifted(t.Context()) {
		t.Error("the host has another address, and that is no reason to look")
	}
	apply(t, b, external)
	n.wantAnswer(t, one)
	if server, _, _, err := n.ask(t, "10.96.0.1:22"); err != nil || server != "0.0.0.0:22" {
		t.Errorf("since the host has it: got %q and error %v, want the program there", server, err)
	}
}

// Routes that somebody takes away, or makes in our name, are noticed and repaired.
func TestLocalRoutesAreRepaired(t *testing.T) {
	n := newNetwork(t)
	needLocalRoutes(t, n)
	n.serve(t, podServer)
	b := n.start(t, userspace.Options{Capture: userspace.LocalRoutes})
	node := *snapshot(one).Node()
	node.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.98.0.0/16")}
	s := withNode(snapshot(one), &node)
	apply(t, b, s)
	n.wantAnswer(t, one)
	h, was := n.node.Netlink(), n.doors(t)
	at := slices.IndexFunc(was, func(r netlink.Route) bool { return r.Type == syscall.RTN_LOCAL })
	if len(was) != 2 || at < 0 {
		t.Fatalf("got routes %v, want a local one and a blackhole", was)
	}
	foreign := was[at]
	foreign.Dst = &net.IPNet{IP: net.IPv4(192, 0, 2, 9).To4(), Mask: net.CIDRMask(32, 32)}
	wider := was[1-at]
	wider.Dst = &net.IPNet{IP: net.IPv4(10, 98, 0, 0).To4(), Mask: net.CIDRMask(15, 32)}
	source := was[at]
	source.Src = net.IPv4(10, 244, 2, 1)
	for name, harm := range map[string]func() error{
		"the address is gone":    func() error { return h.RouteDel(&was[at]) },
		"the range is gone":      func() error { return h.RouteDel(&was[1-at]) },
		"one more":               func() error { return h.RouteAdd(&foreign) },
		"another in its place":   func() error { return errors.Join(h.RouteDel(&was[at]), h.RouteAdd(&foreign)) },
		"another range":          func() error { return errors.Join(h.RouteDel(&was[1-at]), h.RouteAdd(&wider)) },
		"with another source":    func() error { return h.RouteReplace(&source) },
		"everything in our name": func() error { return errors.Join(h.RouteAdd(&foreign), h.RouteAdd(&wider), h.RouteReplace(&source)) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := harm(); err != nil {
				t.Fatal(err)
			}
			if !b.Drifted(t.Context()) {
				t.Error("that is no reason to look")
			}
			apply(t, b, s)
			if got := n.doors(t); fmt.Sprint(got) != fmt.Sprint(was) {
				t.Errorf("after a repair, got routes %v, want %v", got, was)
			}
			if b.Drifted(t.Context()) {
				t.Error("after a repair, something is still not as it should be")
			}
			n.wantAnswer(t, one)
		})
	}
	apply(t, b, snapshot(one)) // without the range
	if got := n.doors(t); len(got) != 1 {
		t.Errorf("without a range of ClusterIPs, got routes %v, want one", got)
	}
	apply(t, b, s)
	if err := b.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.doors(t); len(got) != 0 {
		t.Errorf("after Cleanup, got routes %v, want none", got)
	}
}

// A ClusterIP that the host has as well is the Service's, all of its ports.
func TestClusterIPsOfTheHost(t *testing.T) {
	n := newNetwork(t)
	needLocalRoutes(t, n)
	n.serve(t, podServer)
	n.at(n.node).serve(t, "0.0.0.0:22")
	if err := n.node.AddAddress("clients", netip.MustParsePrefix("10.96.0.1/32")); err != nil {
		t.Fatal(err)
	}
	apply(t, n.start(t, userspace.Options{Capture: userspace.LocalRoutes}), ofKind(snapshot(one), proxy.ClusterIP))
	n.wantAnswer(t, one)
	if server, _, _, err := n.ask(t, "10.96.0.1:22"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("another port: got %q and error %v, want a refusal", server, err)
	}
}

// Before the node has got the address that it is said to have, Services are served.
func TestNodesWithoutTheirAddress(t *testing.T) {
	n := newNetwork(t)
	needLocalRoutes(t, n)
	n.serve(t, podServer)
	node := *snapshot(one).Node()
	node.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.50")}
	apply(t, n.start(t, userspace.Options{Capture: userspace.LocalRoutes}), withNode(snapshot(one), &node))
	n.wantAnswer(t, one)
}

// After Cleanup, a program of the node has its port, which was a node port.
func TestCleanupGivesPortsBack(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
		n.serve(t, podServer)
		const port, onNode = ":30100", "10.244.1.1:30100"
		n.at(n.node).serve(t, onNode)
		s := ofKind(snapshot("0.0.0.0"+port), proxy.NodePort)
		node := *s.Node()
		node.NodePorts.All = true
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, withNode(s, &node))
		n.wantAnswer(t, onNode)
		if err := b.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if server, _, _, err := n.ask(t, onNode); err != nil || server != onNode {
			t.Errorf("after Cleanup: got %q and error %v, want the program", server, err)
		}
	})
}

// What is to be left alone is, whoever has the address.
func TestPassedFrontendsAreLeftAlone(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
		n.serve(t, podServer)
		n.serve(t, one)
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, withAction(ofKind(snapshot(one), proxy.ExternalIP), proxy.Pass))
		if server, _, _, err := n.ask(t, one); err != nil || server != one {
			t.Errorf("got %q and error %v, want who has the address", server, err)
		}
	})
}

// A program that somebody has taken away is missed, and put back by the next look.
func TestProgramTakenAway(t *testing.T) {
	n := newNetwork(t)
	needLocalRoutes(t, n)
	n.serve(t, podServer)
	b := n.start(t, userspace.Options{Capture: userspace.LocalRoutes})
	apply(t, b, snapshot(one))
	for range 2 {
		_, c := n.wantAnswer(t, one)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if b.Drifted(t.Context()) {
			t.Fatal("nobody has changed anything, and it has drifted")
		}
		if err := b.TakeProgramAway(); err != nil {
			t.Fatal(err)
		}
		if _, _, c, err := n.ask(t, one); err == nil {
			_ = c.Close()
			t.Fatal("the Service works without the program; the test shows nothing")
		}
		if !b.Drifted(t.Context()) {
			t.Error("the program is gone, and nobody misses it")
		}
		apply(t, b, snapshot(one))
	}
	n.wantAnswer(t, one)
}
