package backendtest

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// The report of a packet with a wrong outcome has its outcomes with all backends.
func TestDifferencesNameAllBackends(t *testing.T) {
	f := flight{from: atClient, to: netip.MustParseAddrPort("10.96.0.1:80"), protocol: v1.ProtocolTCP}
	other := flight{from: atNode, to: f.to, protocol: f.protocol}
	c := &comparison{names: []string{"one", "three", "two"}}
	wrong := map[string][]wrongFlight{"two": {{f, []string{"refused", "silence"}, "what was wanted"}}}
	want := "what was wanted\n  one: as wanted\n  three: as wanted\n  two: got refused, silence"
	if got := c.differences(f, wrong); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := c.differences(other, wrong); got != "" {
		t.Errorf("packet with the right outcome: got %q, want nothing", got)
	}
}
