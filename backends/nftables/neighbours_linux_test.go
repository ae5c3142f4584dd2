package nftables

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// Rules identify pods also if the route of pods and that of the node are the same.
func TestPodsAndNodeWithTheSameRoute(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := stagetest.Port(v1.IPv4Protocol, 0, 2)
	p.Frontends[0].FromInside = proxy.TrafficRoute{Action: proxy.Reject}
	p.Frontends[0].FromOutside = stagetest.Forward(proxy.MasqueradeNever)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
	listing := s.nft(t, "list", "table", "ip", "vipkit")
	for _, want := range []string{"ip saddr 10.0.0.0/9 goto reject-service", "fib saddr type local goto reject-service"} {
		if !strings.Contains(listing, want) {
			t.Errorf("ruleset: got no %q:\n%s", want, listing)
		}
	}
}
