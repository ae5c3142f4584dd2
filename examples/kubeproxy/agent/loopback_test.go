package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/proxy"
)

// TestLoopbackByConfiguration checks at which loopback addresses node ports answer, by mode, and that
// a list of loopback addresses alone never selects others.
func TestLoopbackByConfiguration(t *testing.T) {
	t.Parallel()
	const gate = " -feature-gates=KubeProxyNFTablesLocalhostNodePorts="
	for _, tc := range []struct{ flags, loopback, others string }{
		{"-proxy-mode nftables", "[]", "primary"},
		{"-proxy-mode nftables -nodeport-addresses all", "[]", "all"},
		{"-proxy-mode nftables -nodeport-addresses localhost", "[127.0.0.1 ::1]", "none"},
		{"-proxy-mode nftables -nodeport-addresses primary,127.0.0.0/8", "[127.0.0.1]", "primary"},
		{"-proxy-mode nftables -nodeport-addresses localhost" + gate + "true", "[127.0.0.1 ::1]", "none"},
		{"-proxy-mode nftables -nodeport-addresses localhost" + gate + "false", "[]", "none"},
		{"-proxy-mode nftables -nodeport-addresses localhost,all -feature-gates=AllAlpha=false", "[]", "all"},
		{"-proxy-mode nftables -nodeport-addresses localhost -iptables-localhost-nodeports=false", "[127.0.0.1 ::1]", "none"},
		{"-proxy-mode iptables", "[127.0.0.1]", "all"},
		{"-proxy-mode iptables -nodeport-addresses localhost,all", "[127.0.0.1 ::1]", "all"},
		{"-proxy-mode iptables -nodeport-addresses 0.0.0.0/0", "[127.0.0.1]", "0.0.0.0/0"},
		{"-proxy-mode iptables -nodeport-addresses 0.0.0.0/1", "[127.0.0.1]", "0.0.0.0/1"},
		{"-proxy-mode iptables -nodeport-addresses 128.0.0.0/1", "[]", "128.0.0.0/1"},
		{"-proxy-mode nftables -nodeport-addresses 0.0.0.0/1", "[]", "0.0.0.0/1"},
		{"-proxy-mode iptables -nodeport-addresses primary", "[]", "primary"},
		{"-proxy-mode iptables -nodeport-addresses 127.0.0.2/32" + gate + "false", "[127.0.0.2]", "none"},
		{"-proxy-mode iptables -iptables-localhost-nodeports=false", "[]", "all"},
		{"-proxy-mode iptables -nodeport-addresses localhost -iptables-localhost-nodeports=false", "[]", "none"},
		{"-proxy-mode ipvs", "[]", "all"},
		{"-proxy-mode ipvs -nodeport-addresses localhost", "[127.0.0.1 ::1]", "none"},
	} {
		c, out, err := readConfig(t, "", tc.flags)
		if err != nil {
			t.Fatalf("%s: %v, %s", tc.flags, err, out)
		}
		at := c.nodePortsOf(string(c.Mode))
		others := "none"
		switch {
		case at.All:
			others = "all"
		case at.Primary || at.Equal(proxy.NodePortAddresses{}):
			others = "primary"
		case len(at.Prefixes) > 0 && !at.Prefixes[0].Addr().IsLoopback():
			others = at.Prefixes[0].String()
		}
		if got := fmt.Sprint(at.LoopbackAddresses()); got != tc.loopback || others != tc.others {
			t.Errorf("%s: got loopback addresses %s, and others %s, want %s and %s", tc.flags, got, others, tc.loopback, tc.others)
		}
		if strings.Contains(strings.Join(c.warnings, " "), "nodePortAddresses") {
			t.Errorf("%s: got warnings %q, want none of node ports", tc.flags, c.warnings)
		}
	}
}
