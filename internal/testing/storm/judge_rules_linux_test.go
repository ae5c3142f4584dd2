package storm

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/lab"
)

// A client that chose its endpoint at an external address may keep it at the ClusterIP while the change
// is applied that removes the endpoint and ends a policy of the ClusterIP, but not without affinity
// and not after the change.
func TestAffinityDuringChange(t *testing.T) {
	for _, affinity := range []int32{0, 18} {
		j := newJudge(newModel(), 0)
		j.mixing = true
		old := &spec{Type: v1.ServiceTypeLoadBalancer, Internal: true, Affinity: affinity, ExternalIP: true, Local: 16, Remote: 9, First: 1}
		next := &spec{Type: v1.ServiceTypeLoadBalancer, Affinity: affinity, ExternalIP: true, Local: 1, First: 1}
		for _, s := range []*spec{old, next} {
			j.model.set(t, &change{Services: map[int]*spec{8: s}})
		}
		f := flight{from: clientNode, to: netip.MustParseAddrPort("[fd00:96::108]:80"), protocol: v1.ProtocolTCP}
		node := netip.MustParseAddrPort("[fd00:18::2]:40000")
		got := &outcome{source: node, answer: lab.Answer{Own: netip.MustParseAddrPort("[fd00:10:3::4009]:8080"), Client: node}}
		for applied, want := range map[int]bool{1: affinity > 0, 2: false} {
			v := verdictsOf(f, got, j.model.since(applied))
			if allowed := j.allows(f, got, &v, applied); allowed != want {
				t.Errorf("affinity of %d s, message %d is applied: allowed: got %t, want %t", affinity, applied, allowed, want)
			}
		}
	}
}
