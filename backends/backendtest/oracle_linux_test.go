package backendtest

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// A flight is wrong if one of its outcomes is not allowed, and also if one that is expected is missing after all
// rounds: a dataplane that never chooses an endpoint.
func TestOracle(t *testing.T) {
	b := setUpVerdicts(t)
	node := b.addr(atNode, v1.IPv4Protocol)
	local, remote := sees("local", node)[0], sees("remote", node)[0]
	for _, c := range []struct {
		name      string
		at        byte
		endpoints []hostName
		want      []string // the outcomes of the wrong flight; nil if it is right
	}{
		{"all endpoints", toEither, []hostName{atLocal, atRemote}, nil},
		{"the only endpoint", toLocalMasked, []hostName{atLocal}, nil},
		{"an endpoint is never chosen", toLocalMasked, []hostName{atLocal, atRemote}, []string{local}},
		{"an endpoint of another Service", toRemoteMasked, []hostName{atLocal}, []string{remote}},
		{"no endpoint", toLocalMasked, nil, []string{local}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &sample{number: 1}
			for _, at := range c.endpoints {
				x.endpoints = append(x.endpoints, sampleEndpoint{at: at})
			}
			o, to := x.objects(), vip(v1.IPv4Protocol, c.at)
			o.services[0].Spec.ClusterIP = to.String()
			f := flight{from: atOutside, to: netip.AddrPortFrom(to, samplePort), protocol: v1.ProtocolTCP}
			wrong, err := b.checkOracle(t.Context(), snapshotOf(t, nodeOptions(), o), []flight{f})
			testenv.NoError(t, err)
			var got []string
			for _, w := range wrong {
				got = append(got, w.got...)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("outcomes of wrong flights (-want +got):\n%s", diff)
			}
		})
	}
}
