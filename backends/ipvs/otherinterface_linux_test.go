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

// Node-local DNS puts the ClusterIP of a Service on an interface of its own and listens there. Ports of
// that address without a Service stay those of the node's processes. Those of an address of the
// backend's device are rejected, and packets to an address that nothing has do not leave the node.
func TestServiceAddressOfAnotherInterface(t *testing.T) {
	s := newStage(t, Options{})
	w := stagetest.NewRow(s.Lab, 1)
	s.run(t, "ip link add nodelocaldns type dummy")
	var ports []*proxy.ServicePort
	want := map[netip.Addr]string{}
	for _, x := range []struct {
		family       v1.IPFamily
		network      string
		node, client string // addresses of the link
	}{
		{v1.IPv4Protocol, "tcp4", "192.0.2.9/24", "192.0.2.10/24"},
		{v1.IPv6Protocol, "tcp6", "fd00:2::9/64", "fd00:2::a/64"},
	} {
		at, own, nowhere := stagetest.Port(x.family, 1, 1), stagetest.Port(x.family, 2, 1), stagetest.ClusterIP(x.family, 3)
		dns := at.Frontends[0].Addr.Addr()
		everywhere := netip.PrefixFrom(nowhere, 0).Masked()
		if err := errors.Join(
			s.NS.AddAddress("nodelocaldns", netip.PrefixFrom(dns, dns.BitLen())),
			s.NS.AddAddress("clients", netip.MustParsePrefix(x.node)),
			s.NS.AddRoute(netns.Route{To: everywhere, Link: "clients"}),
			w.Client.AddAddress("eth0", netip.MustParsePrefix(x.client)),
			w.Client.AddAddress("eth0", netip.PrefixFrom(nowhere, nowhere.BitLen())),
		); err != nil {
			t.Fatal(err)
		}
		for _, ns := range []*netns.NS{s.NS, w.Client} {
			l, err := ns.Listen(t.Context(), x.network, netip.AddrPortFrom(everywhere.Addr(), 9253).String())
			testenv.NoError(t, err)
			testenv.CloseAtEnd(t, l)
		}
		if got := s.dial(t, netip.AddrPortFrom(nowhere, 9253)); got != accepted {
			t.Fatalf("%v before Apply: got %s, want %s", nowhere, got, accepted)
		}
		ports = append(ports, at, own)
		want[dns], want[own.Frontends[0].Addr.Addr()], want[nowhere] = accepted, refused, dropped
	}
	s.Apply(t, snapshotOf(ports...))
	for a, want := range want {
		if got := s.dial(t, netip.AddrPortFrom(a, 9253)); got != want {
			t.Errorf("a port without a Service at %v: got %s, want %s", a, got, want)
		}
	}
}

// What happens to a connection.
const (
	accepted = "accepted"
	refused  = "refused"
	dropped  = "dropped"
)

// dial connects a process of the node, closes the connection, and returns what has happened to it.
func (s *stage) dial(t testing.TB, to netip.AddrPort) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	c, err := s.NS.Dial(ctx, "tcp", to.String())
	if err == nil {
		err = c.Close()
	}
	e, isNet := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		return accepted
	case errors.Is(err, unix.ECONNREFUSED):
		return refused
	case isNet && e.Timeout():
		return dropped
	}
	return err.Error()
}
