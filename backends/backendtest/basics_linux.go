package backendtest

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// testBasics checks packets of each kind: to an endpoint of the node and to one of another node,
// to a Service without endpoints, to addresses that are no frontends, and from outside of source
// ranges. A backend that fails here fails nearly everywhere, so nothing else is tested then.
func (c *Config) testBasics(t *testing.T) {
	s := c.setUp(t)
	s.calm()
	const cluster = v1.ServiceExternalTrafficPolicyCluster
	kinds := []*sample{
		{number: 1, serviceType: v1.ServiceTypeNodePort, external: cluster, endpoints: []sampleEndpoint{{at: atLocal}}},
		{number: 2, serviceType: v1.ServiceTypeNodePort, external: cluster, endpoints: []sampleEndpoint{{at: atRemote}}},
		{number: 3, serviceType: v1.ServiceTypeNodePort, external: cluster},
		{
			number: 4, serviceType: v1.ServiceTypeLoadBalancer, external: cluster, loadBalancer: true,
			ranges: []string{"192.0.2.0/24"}, endpoints: []sampleEndpoint{{at: atLocal}},
		},
	}
	var all []objects
	for _, x := range kinds {
		all = append(all, x.objects())
	}
	snapshot := snapshotOf(t, nodeOptions(), all...)
	s.apply(t, snapshot)
	for _, x := range kinds {
		s.checkFlights(t, snapshot, x.basicFlights())
	}
	if t.Failed() {
		t.Log(`"gateway" is the next hop of the node: it gets the packets that the node did not translate`)
	}
}

// basicFlights returns packets of all kinds of clients to all addresses that a sample may have, first
// the most simple ones.
func (s *sample) basicFlights() (all []flight) {
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
			for _, from := range []hostName{atClient, atNode, atOutside, atStranger} {
				all = append(all, client{from, protocol, family}.flightsTo(s)...)
			}
		}
	}
	return all
}
