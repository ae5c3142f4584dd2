package userspace_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Packets that another program exempts from connection tracking pass, as those to a cache of DNS on
// the node at the address of the Service of DNS, from pods and from the node itself. So do
// packets to its other ports.
func TestUntrackedPacketsPass(t *testing.T) {
	t.Parallel()
	for _, c := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.addIPv6(t)
			cache := n.at(n.node)
			servers := map[string]string{one: podServer, service6: podServer6}
			for at, server := range servers {
				a := netip.MustParseAddrPort(at).Addr()
				testenv.NoError(t, n.node.AddAddress("clients", netip.PrefixFrom(a, a.BitLen())))
				n.serve(t, server)
				n.servePeerAddress(t, server)
				for _, own := range []string{at, otherPort(at)} {
					cache.serve(t, own)
					cache.echo(t, own)
				}
			}
			apply(t, n.start(t, userspace.Options{Capture: c}), bridgedServices())
			for at, server := range servers {
				n.wantServer(t, "tracked", at, server)
			}
			n.nft(t, `table inet exempt {
				set cached { type ipv4_addr; elements = { 10.96.0.1 } }
				set cached6 { type ipv6_addr; elements = { fd00:96::1 } }
				chain in { type filter hook prerouting priority -300; ip daddr @cached notrack; ip6 daddr @cached6 notrack; }
				chain out { type filter hook output priority -300
					ip daddr @cached notrack; ip6 daddr @cached6 notrack
					ip saddr @cached notrack; ip6 saddr @cached6 notrack
				}
			}`)
			for _, from := range []*netns.NS{n.client, n.node} {
				for at := range servers {
					n.from(from).wantServer(t, "untracked", at, at)
					n.from(from).wantServer(t, "untracked", otherPort(at), otherPort(at))
				}
			}
		})
	}
}

// otherPort returns a port of the same address to which no Service belongs.
func otherPort(at string) string {
	return netip.AddrPortFrom(netip.MustParseAddrPort(at).Addr(), 9253).String()
}

// wantServer checks who answers a connection and a datagram: the server at an address, which names
// itself and echoes datagrams, or the endpoint, which answers datagrams with their source.
func (n network) wantServer(t *testing.T, how, to, server string) {
	t.Helper()
	if got, _, _, err := n.askFor(t, to, 5*time.Second); err != nil || got != server {
		t.Errorf("%s connection to %s: got server %q and error %v, want %s", how, to, got, err, server)
	}
	c, err := n.client.Dial(t.Context(), "udp", to)
	testenv.NoError(t, err)
	defer c.Close() //nolint:errcheck // the test is over
	got, err := ask(c)
	if isEcho := got == "?"; err != nil || isEcho != (server == to) {
		t.Errorf("%s datagram to %s: got answer %q and error %v, want one of %s", how, to, got, err, server)
	}
}

// ask sends a datagram, and returns the answer.
func ask(c net.Conn) (string, error) {
	if _, err := c.Write([]byte("?")); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}
