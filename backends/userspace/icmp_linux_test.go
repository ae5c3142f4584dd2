package userspace_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// withRefusing returns bridgedServices of UDP, each with a further endpoint that refuses datagrams: an
// unused port of the pod, or of the node.
func withRefusing(at map[v1.IPFamily]string) proxy.Snapshot {
	s := bridgedServices()
	ports := slices.DeleteFunc(slices.Collect(s.All()), func(p *proxy.ServicePort) bool { return p.Name.Protocol != v1.ProtocolUDP })
	return snapshots.EachWith(proxy.NewSnapshot(s.Node(), ports...), func(p *proxy.ServicePort) {
		p.Cluster = snapshots.Endpoints(at[p.Name.Family], p.Cluster[0].Addr.String())
	})
}

// A client's datagrams go to another endpoint after one has refused them by an ICMP error, whoever
// the client is and wherever the endpoint.
func TestRefusedDatagrams(t *testing.T) {
	t.Parallel()
	for name, refusing := range map[string]map[v1.IPFamily]string{
		"pod":  {v1.IPv4Protocol: podAddr + ":9", v1.IPv6Protocol: "[fd00:2::10]:9"},
		"node": {v1.IPv4Protocol: "10.244.2.1:9", v1.IPv6Protocol: "[fd00:2::1]:9"},
	} {
		for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
			for _, netfilter := range []bool{false, true} {
				t.Run(name+"/"+capture.String(), func(t *testing.T) {
					t.Parallel()
					n := newBridged(t, netfilter)
					n.servePeerAddress(t, podServer)
					n.servePeerAddress(t, podServer6)
					apply(t, n.start(t, userspace.Options{Capture: capture}), withRefusing(refusing))
					for _, from := range []*netns.NS{n.client, n.other, n.node} {
						for _, to := range []string{one, service6} {
							wantAllAnswered(t, n.from(from), to)
						}
					}
				})
			}
		}
	}
}

// wantAllAnswered sends datagrams from several sockets of the client. Each must get an answer soon.
func wantAllAnswered(t *testing.T, n network, to string) {
	t.Helper()
	const sockets = 4
	answered := 0
	for range sockets {
		c, err := n.client.Dial(t.Context(), "udp", to)
		testenv.NoError(t, err)
		buf := make([]byte, 100)
		for range 20 {
			_, _ = c.Write([]byte("?"))
			_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			if _, err := c.Read(buf); err == nil {
				answered++
				break
			}
		}
		_ = c.Close()
	}
	if diff := cmp.Diff(sockets, answered); diff != "" {
		t.Errorf("answered clients at %s (-want +got):\n%s", to, diff)
	}
}
