package userspace_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// needLocalRoutes ends the test if BPF is not allowed, as in a user namespace.
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
		testenv.CannotRun(t, "needs root: BPF")
	}
	testenv.NoError(t, err)
}

// ofKind sets the kind of all frontends of a snapshot.
func ofKind(s proxy.Snapshot, kind proxy.FrontendKind) proxy.Snapshot {
	return snapshots.EachWith(s, func(p *proxy.ServicePort) {
		for i := range p.Frontends {
			p.Frontends[i].Kind = kind
		}
	})
}

// A program of the node that listens at every address gets packets to the node's own addresses,
// and none to addresses of a Service, at whichever port.
func TestHostListenerGetsNothingOfServices(t *testing.T) {
	t.Parallel()
	for _, kind := range []proxy.FrontendKind{proxy.ClusterIP, proxy.ExternalIP} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
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
				t.Errorf("another port: got %q and error %v, want %v", server, err, syscall.ECONNREFUSED)
			}
			if server, _, _, err := n.ask(t, "10.244.1.1:80"); err != nil || server != "0.0.0.0:80" {
				t.Errorf("the node itself: got %q and error %v, want an answer of the program", server, err)
			}
		})
	}
}

// If the host has an external address itself, its programs keep the other ports of the address.
func TestHostKeepsItsOwnAddress(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	needLocalRoutes(t, n)
	n.serve(t, podServer)
	host := network{client: n.client, node: n.node, pod: n.node}
	host.serve(t, "0.0.0.0:22")
	b := n.start(t, userspace.Options{Capture: userspace.LocalRoutes})
	external := ofKind(snapshot(one), proxy.ExternalIP)
	apply(t, b, external)
	if _, _, _, err := n.ask(t, "10.96.0.1:22"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("before the host has the address: got error %v, want %v", err, syscall.ECONNREFUSED)
	}
	testenv.NoError(t, n.node.AddAddress("clients", netip.MustParsePrefix("10.96.0.1/32")))
	if !b.Drifted(t.Context()) {
		t.Error("Drifted after the host got the address: got false, want true")
	}
	apply(t, b, external)
	n.wantAnswer(t, one)
	if server, _, _, err := n.ask(t, "10.96.0.1:22"); err != nil || server != "0.0.0.0:22" {
		t.Errorf("after the host got the address: got %q and error %v, want an answer of the program", server, err)
	}
}

// The backend notices and repairs routes that another program removes, or adds with the
// backend's protocol and metric.
func TestLocalRoutesAreRepaired(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	needLocalRoutes(t, n)
	n.serve(t, podServer)
	b := n.start(t, userspace.Options{Capture: userspace.LocalRoutes})
	node := *snapshot(one).Node()
	node.ServiceCIDRs = snapshots.Prefixes("10.98.0.0/16")
	s := withNode(snapshot(one), &node)
	apply(t, b, s)
	n.wantAnswer(t, one)
	h, was := n.node.Netlink(), n.listenerRoutes(t)
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
	for name, damage := range map[string]func() error{
		"no address":             func() error { return h.RouteDel(&was[at]) },
		"no range":               func() error { return h.RouteDel(&was[1-at]) },
		"one added":              func() error { return h.RouteAdd(&foreign) },
		"another address":        func() error { return errors.Join(h.RouteDel(&was[at]), h.RouteAdd(&foreign)) },
		"another range":          func() error { return errors.Join(h.RouteDel(&was[1-at]), h.RouteAdd(&wider)) },
		"with another source":    func() error { return h.RouteReplace(&source) },
		"everything in our name": func() error { return errors.Join(h.RouteAdd(&foreign), h.RouteAdd(&wider), h.RouteReplace(&source)) },
	} {
		t.Run(name, func(t *testing.T) {
			testenv.NoError(t, damage())
			if !b.Drifted(t.Context()) {
				t.Error("Drifted: got false, want true")
			}
			apply(t, b, s)
			if got := n.listenerRoutes(t); fmt.Sprint(got) != fmt.Sprint(was) {
				t.Errorf("routes after a repair: got %v, want %v", got, was)
			}
			if b.Drifted(t.Context()) {
				t.Error("Drifted after the repair: got true, want false")
			}
			n.wantAnswer(t, one)
		})
	}
	apply(t, b, snapshot(one)) // without the range
	if got := n.listenerRoutes(t); len(got) != 1 {
		t.Errorf("routes without a range of ClusterIPs: got %v, want one", got)
	}
	apply(t, b, s)
	testenv.NoError(t, b.Cleanup(t.Context()))
	if got := n.listenerRoutes(t); len(got) != 0 {
		t.Errorf("routes after Cleanup: got %v, want none", got)
	}
}

// If the host has a ClusterIP, too, all ports of the address belong to the Service.
func TestClusterIPsOfTheHost(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	needLocalRoutes(t, n)
	n.serve(t, podServer)
	n.at(n.node).serve(t, "0.0.0.0:22")
	testenv.NoError(t, n.node.AddAddress("clients", netip.MustParsePrefix("10.96.0.1/32")))
	apply(t, n.start(t, userspace.Options{Capture: userspace.LocalRoutes}), snapshot(one))
	n.wantAnswer(t, one)
	if server, _, _, err := n.ask(t, "10.96.0.1:22"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("another port: got %q and error %v, want %v", server, err, syscall.ECONNREFUSED)
	}
}

// Services are served before the node has the address that its Node object lists.
func TestNodesWithoutTheirAddress(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	needLocalRoutes(t, n)
	n.serve(t, podServer)
	node := *snapshot(one).Node()
	node.Addresses = snapshots.Addrs("192.0.2.50")
	apply(t, n.start(t, userspace.Options{Capture: userspace.LocalRoutes}), withNode(snapshot(one), &node))
	n.wantAnswer(t, one)
}

// After Cleanup, a program of the node gets connections to its port, which was a node port.
func TestCleanupFreesNodePorts(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
		n.serve(t, podServer)
		const port, onNode = ":30100", "10.244.1.1:30100"
		n.at(n.node).serve(t, onNode)
		s := snapshot("0.0.0.0" + port)
		node := *s.Node()
		node.NodePorts.All = true
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, withNode(s, &node))
		n.wantAnswer(t, onNode)
		testenv.NoError(t, b.Cleanup(t.Context()))
		if server, _, _, err := n.ask(t, onNode); err != nil || server != onNode {
			t.Errorf("after Cleanup: got %q and error %v, want an answer of the program", server, err)
		}
	})
}

// Packets to a frontend with the action Pass reach the host that has the address.
func TestPassedFrontends(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
		n.serve(t, podServer)
		n.serve(t, one)
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, withAction(ofKind(snapshot(one), proxy.ExternalIP), proxy.Pass))
		if server, _, _, err := n.ask(t, one); err != nil || server != one {
			t.Errorf("got %q and error %v, want an answer of %s", server, err, one)
		}
	})
}

// The backend notices when another program detaches its BPF program, and the next resync attaches
// it again.
func TestDetachedProgramIsRepaired(t *testing.T) {
	t.Parallel()
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
			t.Fatal("Drifted without a change: got true, want false")
		}
		testenv.NoError(t, n.node.Do(detachPrograms))
		if _, _, c, err := n.ask(t, one); err == nil {
			_ = c.Close()
			t.Fatal("got an answer without the program, want none")
		}
		if !b.Drifted(t.Context()) {
			t.Error("Drifted without the program: got false, want true")
		}
		apply(t, b, snapshot(one))
	}
	n.wantAnswer(t, one)
}

// detachPrograms detaches the programs from the network namespace of the calling thread, as any
// privileged process may.
func detachPrograms() error {
	var here unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &here); err != nil {
		return err
	}
	detached := errors.New("there is no program")
	all := new(link.Iterator)
	defer all.Close()
	for all.Next() {
		info, err := all.Link.Info()
		if err != nil {
			continue // another program's link, which may have been removed
		}
		if ns := info.NetNs(); ns != nil && uint64(ns.NetnsInode) == here.Ino {
			detached = all.Link.Detach()
		}
	}
	return detached
}
