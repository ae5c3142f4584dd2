package kernelspace

import (
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// A load balancer whose mapping flags another program has changed to others than the backend writes leaves the mirror
// when it is deleted. Otherwise its endpoints would count as used until everything is listed.
func TestDeletedLoadBalancerLeavesMirror(t *testing.T) {
	x := &target{client: hcntest.New(hcn.Version{Major: 16, Minor: 1}, netip.Addr{}), mirror: newMirror(hcn.Network{}, "vipkit/", "cbr0")}
	k := key{kind: kindHealthCheck, protocol: 6, addr: netip.MustParseAddrPort("203.0.113.1:10256"), mapping: hcn.UseMux}
	x.mirror.put(k, hcn.LoadBalancer{ID: "deleted", Endpoints: []string{"root"}})
	testenv.NoError(t, x.deleteLoadBalancer(t.Context(), k, "deleted"))
	if len(x.mirror.loadBalancers) != 0 || x.mirror.users["root"] != 0 {
		t.Errorf("mirror: got load balancers %v and users %v, want none", x.mirror.loadBalancers, x.mirror.users)
	}
}
