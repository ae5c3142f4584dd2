package agent

import (
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// fromNode returns the world with the node as the client.
func (w *world) fromNode() *world {
	on, node := *w, *w.node
	node.Client = node.NS
	on.node = &node
	return &on
}

// TestMixedNodePortAddresses checks that node ports answer at the primary address that the Node object
// has at the time, and at loopback addresses, to processes of the node.
func TestMixedNodePortAddresses(t *testing.T) {
	t.Parallel()
	const second = "192.0.2.99"
	for _, mode := range []string{nftablesMode, iptablesMode} {
		t.Run(mode, func(t *testing.T) {
			if mode == iptablesMode {
				need(t, "iptables-restore")
			}
			w := newWorld(t, "mode: "+mode+"\nnodePortAddresses: [primary, localhost]\n")
			testenv.NoError(t, w.node.AddAddress("clients", netip.MustParsePrefix(second+"/24")))
			p := w.start()
			p.Await("msg=serving")
			w.fromNode().wantAnswer("127.0.0.1:30080", "8080")
			w.wantAnswer(nodePort, "8080")
			w.wantAnswer(second+":30080", "")
			w.api.put("nodes", node(second))
			w.wantAnswer(second+":30080", "8080")
			w.wantAnswer(nodePort, "")
			w.fromNode().wantAnswer("127.0.0.1:30080", "8080")
			w.api.put("endpointslices", slice("web", 8081))
			w.fromNode().wantAnswer("127.0.0.1:30080", "8081")
			p.Terminate(stopped)
			w.fromNode().wantAnswer("127.0.0.1:30080", "")
		})
	}
}

// TestLoopbackPortInUse checks that a node port at a loopback address that another program has is in
// the log, on the debug page and in the metrics until it answers, and does not make the node unhealthy.
func TestLoopbackPortInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "mode: nftables\nnodePortAddresses: [primary, localhost]\n")
	taken, err := w.node.Listen(t.Context(), "tcp", "127.0.0.1:30080")
	testenv.NoError(t, err)
	p := w.start()
	p.Await("node port not served at loopback addresses", "default/web", "127.0.0.1:30080/TCP", "another program of the node listens there")
	p.Await("msg=serving")
	w.wantAnswer(nodePort, "8080")
	p.AwaitPage(healthz+"/healthz", "200 OK")
	p.AwaitPage(metrics+"/debug/services", "Served with limits", "127.0.0.1:30080/TCP")
	const listeners, failures = "kubeproxy_nftables_localhost_nodeport_listeners", "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total"
	p.AwaitPage(metrics+"/metrics", listeners+`{ip_family="IPv4"} 0`, listeners+`{ip_family="IPv6"} 0`, failures+`{ip_family="IPv4"} `, failures+`{ip_family="IPv6"} 0`)
	testenv.NoError(t, taken.Close())
	w.fromNode().wantAnswer("127.0.0.1:30080", "8080")
	p.AwaitPage(metrics+"/metrics", listeners+`{ip_family="IPv4"} 1`, listeners+`{ip_family="IPv6"} 0`)
	p.Terminate(stopped)
}
