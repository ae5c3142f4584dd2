package backendtest

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
)

// testBasics checks packets of each kind: to an endpoint of the node and to one of another node,
// to a Service without endpoints, to addresses that are no frontends, and from outside of source
// ranges. A backend that fails here fails nearly everywhere, so nothing else is tested then.
func (c *Config) testBasics(t *testing.T) {
	s := c.setUp(t)
	s.calm()
	const everywhere = v1.ServiceExternalTrafficPolicyCluster
	kinds := []*cluster.Sample{
		{Number: 1, Type: v1.ServiceTypeNodePort, External: everywhere, Endpoints: []cluster.Endpoint{{At: cluster.Local}}},
		{Number: 2, Type: v1.ServiceTypeNodePort, External: everywhere, Endpoints: []cluster.Endpoint{{At: cluster.Remote}}},
		{Number: 3, Type: v1.ServiceTypeNodePort, External: everywhere},
		{
			Number: 4, Type: v1.ServiceTypeLoadBalancer, External: everywhere,
			Ranges: []string{"192.0.2.0/24"}, Endpoints: []cluster.Endpoint{{At: cluster.Local}},
		},
	}
	var all []cluster.Objects
	for _, x := range kinds {
		all = append(all, x.Objects())
	}
	snapshot := snapshotOf(t, nodeOptions(), all...)
	s.apply(t, snapshot)
	for _, x := range kinds {
		s.checkFlights(t, snapshot, flightsTo(x, clients(transports(), cluster.Client, cluster.Node, cluster.Outside, cluster.Stranger)))
	}
	if t.Failed() {
		t.Log(`"gateway" is the next hop of the node: it gets the packets that the node did not translate`)
	}
}
