package ipaddr

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestProtocolNumber(t *testing.T) {
	want := map[v1.Protocol]uint8{v1.ProtocolTCP: 6, v1.ProtocolUDP: 17, v1.ProtocolSCTP: 132, "": 0, "tcp": 0, "ICMP": 0}
	for p, n := range want {
		if got := ProtocolNumber(p); got != n {
			t.Errorf("protocol %q: got %d, want %d", p, got, n)
		}
	}
}
