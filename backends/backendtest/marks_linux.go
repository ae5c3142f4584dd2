package backendtest

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// markingTable stands for other programs that use the packet mark: it marks what
// comes to the node, and what the node sends, before anybody else sees it. What
// then goes to an endpoint with another mark is lost, on its way out of the node
// or, if the endpoint is in the node's own network, in.
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

// A packet that leaves the node for an endpoint has the mark that others gave it,
// and no bit besides: tunnels, queues and filters go by it.
func lawMarks(t *testing.T, s *stage) { s.keepsMarks(t, atLocal, atRemote) }

// The same is true of what an endpoint in the node's own network gets.
func lawHostMarks(t *testing.T, s *stage) { s.keepsMarks(t, atNode) }

func (s *stage) keepsMarks(t *testing.T, endpoints ...place) {
	t.Helper()
	if err := findNFT(t, s.node()).load(t.Context(), markingTable); err != nil {
		t.Fatal(err)
	}
	x := &sample{number: 4, serviceType: v1.ServiceTypeNodePort, externalIP: true, external: v1.ServiceExternalTrafficPolicyCluster}
	for _, at := range endpoints {
		x.endpoints = append(x.endpoints, sampleEndpoint{at: at})
	}
	snapshot := snapshotOf(t, nodeOptions(), x.objects())
	s.apply(t, snapshot)
	var flights []flight
	for _, from := range []place{atClient, atLocal, atNode, atOutside} {
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
				flights = append(flights, client{from, protocol, family}.flightsTo(x)...)
			}
		}
	}
	s.hold(t, snapshot, flights)
}
