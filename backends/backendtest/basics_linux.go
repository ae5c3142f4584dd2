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
		s.checkFlights(t, snapshot, flightsTo(x, clients(transports(), atClient, atNode, atOutside, atStranger)))
	}
	if t.Failed() {
		t.Log(`"gateway" is the next hop of the node: it gets the packets that the node did not translate`)
	}
}
