package ipaddr

import (
	"net/netip"
	"testing"
)

func TestIsListener(t *testing.T) {
	for text, want := range map[string]bool{
		"0.64.3.1": true, "0.0.0.0": true, "1.0.0.0": false, "127.64.3.1": false,
		"100::1": true, "100::ffff:1": true, "100:0:0:1::1": false, "::1": false, "64:ff9b::1": false,
	} {
		if got := IsListener(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}
