package userspace_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

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
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
	all, err := n.node.Netlink().RouteListFiltered(syscall.AF_INET, ownRoutes(255), ownRoutesMask)
	if err != nil || len(all) != 1 {
		t.Fatalf("got local routes %v and error %v, want one", all, err)
	}
	if err := n.node.Netlink().RouteDel(&all[0]); err != nil {
		t.Fatal(err)
	}
	if !b.Drifted(t.Context()) {
		t.Error("a route is gone, and that is no reason to look")
	}
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
}
