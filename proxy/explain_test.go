package proxy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
)

// TestExplainEndpoints checks that a tracker explains endpoints that no pool has, and nothing for
// ports that do not exist.
func TestExplainEndpoints(t *testing.T) {
	tr := NewServiceChangeTracker(TrackerOptions{NodeName: "node-1"})
	tr.UpdateService(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{
			ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, InternalTrafficPolicy: new(v1.ServiceInternalTrafficPolicyLocal),
			Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}},
		},
	})
	tr.UpdateEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(v1.ProtocolTCP), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.1.11"}, NodeName: new("node-1")},
			{Addresses: []string{"10.244.1.12"}, NodeName: new("node-1"), Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
			{Addresses: []string{"10.244.2.11"}, NodeName: new("node-2")},
		},
	})
	name := ServicePortName{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}, Port: "http", Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
	all, got := tr.ExplainEndpoints(name)
	want := []endpoints.Explanation{{InLocal: true, LocalReason: "ready, on this node"}, {LocalReason: "not ready"}, {LocalReason: "on another node"}}
	if diff := cmp.Diff(want, got); diff != "" || len(all) != len(want) || all[1].Addr.String() != "10.244.1.12:8080" {
		t.Errorf("got endpoints %v and reasons (-want +got):\n%s", all, diff)
	}
	for _, other := range []ServicePortName{{}, {NamespacedName: name.NamespacedName, Port: "other"}} {
		if all, got := tr.ExplainEndpoints(other); all != nil || got != nil {
			t.Errorf("%s: got %v, %v, want nothing", other, all, got)
		}
	}
}
