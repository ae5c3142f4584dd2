package xtables

import (
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

func TestFrontendOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		rule     string
		protocol uint8
		at       string // a node port without address; empty for no frontend
	}{
		{`-d 10.96.0.1/32 -p udp -m comment --comment "kube-system/dns:dns cluster IP" -m udp --dport 53 -j X`, ipaddr.UDP, "10.96.0.1:53"},
		{`-d fd00::1/128 -p sctp -m comment --comment "a/b:p --dport 9 -d 1.2.3.4/32" -m sctp --dport 7 -j X`, ipaddr.SCTP, "[fd00::1]:7"},
		{`-p udp -m comment --comment "a/b:p" -m udp --dport 30053 -j X`, ipaddr.UDP, ":30053"},
		{`-d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j X`, ipaddr.TCP, "10.96.0.1:80"},
		{`-d 10.96.0.0/16 -p udp -m udp --dport 53 -j X`, 0, ""},
		{`-d nonsense -p udp -m udp --dport 53 -j X`, 0, ""},
		{`-d 10.96.0.1/32 -p udp -m udp --dport 70000 -j X`, 0, ""},
		{`-d 10.96.0.1/32 -p udp -m udp --dport 53:54 -j X`, 0, ""},
		{`-d 10.96.0.1/32 -p icmp -m udp --dport 53 -j X`, 0, ""},
		{`-s 10.0.0.1/32 -d 10.96.0.1/32 -p udp -m udp --dport 53 -j X`, 0, ""},
		{`-m addrtype --dst-type LOCAL -j NODEPORTS`, 0, ""},
		{`-d 10.96.0.1/32`, 0, ""}, {`-d`, 0, ""}, {``, 0, ""},
	} {
		protocol, at, ok := frontendOf(tc.rule)
		want := netip.AddrPort{}
		if tc.at == ":30053" {
			want = netip.AddrPortFrom(netip.Addr{}, 30053)
		} else if tc.at != "" {
			want = netip.MustParseAddrPort(tc.at)
		}
		if ok != (tc.at != "") || ok && (protocol != tc.protocol || at != want) {
			t.Errorf("%s: got protocol %d at %v and %v, want %d at %q", tc.rule, protocol, at, ok, tc.protocol, tc.at)
		}
	}
}
