package netfilter

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestOriginalDestination reads a description of a flow, complete and with each part missing.
func TestOriginalDestination(t *testing.T) {
	t.Parallel()
	const address = 4 // CTA_IP_V4_DST
	flow := func(addr, port []byte) []byte {
		original := nl.NewRtAttr(unix.NLA_F_NESTED|tupleOriginal, nil)
		addrs := original.AddRtAttr(unix.NLA_F_NESTED|tupleAddrs, nil)
		if addr != nil {
			addrs.AddRtAttr(address, addr)
		}
		ports := original.AddRtAttr(unix.NLA_F_NESTED|tuplePorts, nil)
		if port != nil {
			ports.AddRtAttr(destinationPortIs, port)
		}
		return original.Serialize()
	}
	for _, c := range []struct {
		name        string
		description []byte
		want        string
	}{
		{"complete", flow([]byte{10, 0, 0, 1}, []byte{0, 80}), ""},
		{"empty", nil, "address of 0 bytes"},
		{"no address", flow(nil, []byte{0, 80}), "address of 0 bytes and port of 2"},
		{"no port", flow([]byte{10, 0, 0, 1}, nil), "address of 4 bytes and port of 0"},
		{"short address", flow([]byte{10, 0, 0}, []byte{0, 80}), "address of 3 bytes and port of 2"},
		{"truncated", flow([]byte{10, 0, 0, 1}, []byte{0, 80})[:10], "original destination"},
	} {
		got, err := originalOf(c.description, address)
		switch {
		case c.want == "" && (err != nil || got != netip.MustParseAddrPort("10.0.0.1:80")):
			t.Errorf("%s: got %v and error %v, want 10.0.0.1:80", c.name, got, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "%!")):
			t.Errorf("%s: got %v and error %v, want an error with %q", c.name, got, err, c.want)
		}
	}
}
