package backendtest

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// What a dataplane lacks changes which fates are right, and nothing else.
func TestFatesFollowCapabilities(t *testing.T) {
	b := setUp(t)
	to := netip.MustParseAddrPort("203.0.113.1:81")
	local := proxy.Destination{Addr: netip.MustParseAddrPort("10.0.0.5:8080")}
	refusals := []string{"failed: invalid argument", "refused", "reset", "silence"}
	for _, test := range []struct {
		name     string
		lacks    []Capability
		protocol v1.Protocol
		verdict  proxy.Verdict
		want     []string
	}{
		{"reject", nil, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Reject}, []string{"refused"}},
		{"drop", nil, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Drop}, []string{"silence"}},
		{"other lacks", []Capability{OtherPorts, ClientAddresses}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Reject}, []string{"refused"}},
		{"vague reject", []Capability{Refusals}, v1.ProtocolUDP, proxy.Verdict{Action: proxy.Reject}, refusals},
		{"vague drop", []Capability{Refusals}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Drop}, refusals},
		{"vague echo", []Capability{Refusals}, icmp, proxy.Verdict{Action: proxy.Drop}, append([]string{"answered"}, refusals...)},
		{"pass", []Capability{Refusals}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Pass}, []string{"gateway sees 10.0.0.6"}},
		{"held up", []Capability{OtherPorts}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Pass}, []string{"gateway sees 10.0.0.6", "refused"}},
		{"client", []Capability{Refusals}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Forward, Endpoints: []proxy.Destination{local}}, []string{"local sees 10.0.0.6"}},
		{"node", []Capability{ClientAddresses}, v1.ProtocolTCP, proxy.Verdict{Action: proxy.Forward, Endpoints: []proxy.Destination{local}}, []string{"local sees 172.18.0.2"}},
	} {
		b.lacks = func(c Capability) bool { return slices.Contains(test.lacks, c) }
		got := b.allowed(flight{from: atClient, to: to, protocol: test.protocol}, test.verdict)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: fates (-want +got):\n%s", test.name, diff)
		}
	}
}
