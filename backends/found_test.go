package backends_test

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// Finds has the frontends of UDP and SCTP by protocol and family, once.
func TestFinds(t *testing.T) {
	var f backends.Finds
	for _, x := range []struct {
		protocol uint8
		at       netip.AddrPort
		family   v1.IPFamily
	}{
		{ipaddr.UDP, netip.MustParseAddrPort("10.96.0.1:53"), v1.IPv4Protocol},
		{ipaddr.UDP, netip.AddrPortFrom(netip.Addr{}, 30053), v1.IPv4Protocol},
		{ipaddr.UDP, netip.AddrPortFrom(netip.Addr{}, 30053), v1.IPv6Protocol},
		{ipaddr.SCTP, netip.MustParseAddrPort("10.96.0.1:7"), v1.IPv4Protocol},
		{ipaddr.TCP, netip.MustParseAddrPort("10.96.0.1:80"), v1.IPv4Protocol},
		{0, netip.MustParseAddrPort("10.96.0.1:80"), v1.IPv4Protocol},
	} {
		f.Add(x.family, x.protocol, x.at)
	}
	got := map[string]bool{}
	for _, p := range f.Take() {
		for _, front := range p.Frontends {
			got[string(p.Name.Protocol)+" "+front.Addr.String()] = p.Name.Family == ipaddr.FamilyOf(front.Addr.Addr())
		}
	}
	want := []string{"UDP 10.96.0.1:53", "UDP 0.0.0.0:30053", "UDP [::]:30053", "SCTP 10.96.0.1:7"}
	for _, w := range want {
		if !got[w] {
			t.Errorf("got %v, want %s with the right family", got, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v, want only %v", got, want)
	}
	if again := f.Take(); len(again) != 0 {
		t.Errorf("got %v again, want nothing", again)
	}
}
