package userspace_test

import (
	"errors"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// startOnAddresses starts a backend on the node that adds addresses to a link.
func (n network) startOnAddresses(t *testing.T, link string) *userspace.OnAddresses {
	t.Helper()
	o := userspace.Options{}
	o.Addresses.State = filepath.Join(t.TempDir(), "addresses")
	return netnstest.Open(t, n.node(), func() (*userspace.OnAddresses, error) { return userspace.NewOnAddresses(o, link) })
}

// Real packets reach a Service at an address that was added to an interface: from a client beyond
// the node and from the node itself, at a ClusterIP and at node ports.
func TestAddressesOnALink(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	b := n.startOnAddresses(t, "lo")
	s := proxy.NewSnapshot(snapshots.Node("10.244.1.1", "203.0.113.1"), web(one), web("0.0.0.0:30080"), web(two, one), dns(one))
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
	for _, from := range []network{n, n.from("node")} {
		for _, to := range []string{one, "10.244.1.1:30080"} {
			if a, _ := from.wantAnswer(t, to); a.Client.Addr() != netip.MustParseAddr("10.244.2.1") {
				t.Errorf("%s: the endpoint saw %v, want the address of the node", to, a.Client)
			}
		}
		from.bound("0.0.0.0:0").wantFlow(t, "udp", one, podServer) // the socket receives from that address only
	}
	for _, to := range []string{two, "10.96.0.1:81"} { // an endpoint that is a frontend, and another port
		if a, _, err := n.ask(t, to); err == nil {
			t.Errorf("%s: got an answer of %v, want an error", to, a.Own)
		}
	}
	if b.Abilities().Drifted(t.Context()) {
		t.Error("Drifted: got true, want false")
	}
	// The second address of the node was missing. Now it serves node ports, too.
	testenv.NoError(t, n.node().AddAddress("clients", netip.MustParsePrefix("203.0.113.1/32")))
	if !b.Abilities().Drifted(t.Context()) {
		t.Error("with another address of the node: Drifted: got false, want true")
	}
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
	n.wantAnswer(t, "203.0.113.1:30080")
	testenv.NoError(t, b.Cleanup(t.Context()))
	n.wantServer(t, one, one) // the address is that of another host again
}

// An address that was just added cannot be listened at while the system looks for it on the link.
// The backend waits for that, once for all addresses.
func TestAddressesThatAreNotUsableAtOnce(t *testing.T) {
	n := newNetwork(t)
	for _, sysctl := range []string{"accept_dad", "dad_transmits"} {
		testenv.NoError(t, n.node().Sysctl("net/ipv6/conf/clients/"+sysctl, "1"))
	}
	b := n.startOnAddresses(t, "clients")
	const nobody = "[fd00::5]:80"
	s := services(web(service6, nobody), web("[fd00:96::2]:80", nobody), web("[fd00:96::3]:80", nobody))
	start := time.Now()
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("Apply took %v, want it to wait for the addresses", took)
	}
	// The endpoint does not exist: the connection is made, and reset.
	if _, _, err := n.from("node").ask(t, "[fd00:96::3]:80"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v, want %v", err, syscall.ECONNRESET)
	}
}

// A node port at which another program listens is named, and its service port is served at all other
// frontends. When the program ends, the node port is served, too.
func TestNodePortInUse(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	const taken = "10.244.1.1:30080"
	testenv.NoError(t, n.node().AddAddress("clients", netip.MustParsePrefix("203.0.113.1/32")))
	b := n.startOnAddresses(t, "lo")
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		wantServed := func(at string) {
			t.Helper()
			c, err := n.dial(t, strings.ToLower(string(protocol)), netip.AddrPort{}, at)
			testenv.NoError(t, err)
			if a := askAgain(t, c); a.Own.String() != podServer {
				t.Errorf("%s at %s: got server %v, want %s", protocol, at, a.Own, podServer)
			}
		}
		server, err := io.Closer(nil), error(nil)
		if protocol == v1.ProtocolUDP {
			server, err = n.node().ListenPacket(t.Context(), "udp4", taken)
		} else {
			server, err = n.node().Listen(t.Context(), "tcp4", taken)
		}
		testenv.NoError(t, err)
		s := proxy.NewSnapshot(snapshots.Node("10.244.1.1", "203.0.113.1"), snapshots.With(web(one+" 0.0.0.0:30080"), ofProtocol(protocol)))
		testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
		for _, at := range []string{one, "203.0.113.1:30080"} {
			wantServed(at)
		}
		if got := b.Abilities().CheckNode(s); len(got) != 1 || !strings.Contains(got[0].Error(), taken) {
			t.Errorf("%s: got problems %v, want one with %s", protocol, got, taken)
		}
		if b.Abilities().Drifted(t.Context()) {
			t.Errorf("%s: Drifted while it is in use: got true, want false", protocol)
		}
		testenv.NoError(t, server.Close())
		// A program that another test has just started may hold a copy of the socket for a moment.
		for late := time.Now().Add(10 * time.Second); !b.Abilities().Drifted(t.Context()); time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("%s: Drifted when it is free: got false for 10 s, want true", protocol)
			}
		}
		testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
		wantServed(taken)
		if got := b.Abilities().CheckNode(s); len(got) != 0 {
			t.Errorf("%s: when it is free: got problems %v, want none", protocol, got)
		}
		testenv.NoError(t, b.Cleanup(t.Context()))
	}
}
