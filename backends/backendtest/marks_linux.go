package backendtest

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// markingTable acts as another program that uses the packet mark: it sets the mark of
// packets that the node receives or sends, before other chains. It drops packets to an
// endpoint with another mark, when they leave the node or, if the endpoint is in the
// node's own network, in the input hook.
const markingTable = `table inet marking {
	chain prerouting {
		type filter hook prerouting priority mangle
		meta l4proto { tcp, udp } meta mark set 2
	}
	chain output {
		type filter hook output priority mangle
		meta l4proto { tcp, udp } meta mark set 2
	}
	chain input {
		type filter hook input priority 150
		meta l4proto { tcp, udp } th dport 8080 meta mark != 2 drop
	}
	chain postrouting {
		type filter hook postrouting priority 150
		meta l4proto { tcp, udp } th dport 8080 meta mark != 2 drop
	}
}
`

// A packet that leaves the node for an endpoint has the mark that other programs gave it,
// and no other bit: tunnels, queues and filters depend on it.
func lawMarks(t *testing.T, s *stage) { s.keepsMarks(t, cluster.Local, cluster.Remote) }

// The same is true of packets to an endpoint in the node's own network.
func lawHostMarks(t *testing.T, s *stage) { s.keepsMarks(t, cluster.Node) }

func (s *stage) keepsMarks(t *testing.T, endpoints ...cluster.Name) {
	t.Helper()
	testenv.NoError(t, findNFT(t, s.node()).load(markingTable))
	x := exposed(4, endpoints...)
	snapshot := snapshotOf(t, nodeOptions(), x.Objects())
	s.apply(t, snapshot)
	s.checkFlights(t, snapshot, flightsTo(x, clients(transports(), cluster.Client, cluster.Local, cluster.Node, cluster.Outside)))
}
