//go:build ipvs

package agent

import (
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// TestIPVSWithoutModules checks that the agent names a module that the kernel does not have, serves
// in mode nftables, and leaves nothing of mode ipvs.
func TestIPVSWithoutModules(t *testing.T) {
	netnstest.NFT(t)
	need(t, "iptables-restore")
	for module, after := range map[string]string{
		"ip_vs": `"`, "ip_vs_rr": `"`, "dummy": `"`, "ip_set": `"`, "ip_set_hash_ip": `"`, "ip_set_hash_ipport": `"`, "ip_set_hash_ipportnet": `"`,
		"xt_set": ",", "xt_ipvs": ",",
	} {
		t.Run(module, func(t *testing.T) {
			netnstest.WithoutModule(t, module)
			w := newWorld(t, "mode: ipvs\n")
			p := w.start()
			p.Await("mode unsupported on this node; trying the next", "load the kernel module "+module+after)
			p.Await("msg=mode", "mode=nftables", "ipvs is unsupported")
			p.Await("msg=serving", "ports=1")
			w.wantAnswer(virtualIP, "8080")
			p.Terminate(stopped)
			for _, command := range []string{"ip -br link", "iptables-save", "ip6tables-save", "ipset list -n", "ipvsadm -Sn"} {
				words := strings.Fields(command)
				out, err := netnstest.Run(t, w.node.NS, "", words[0], words[1:]...) // fails if its module is missing
				if strings.Contains(strings.ToLower(out), "vipkit-") || strings.Contains(out, virtualIP) {
					t.Errorf("%s: got\n%s, error %v, want nothing of mode ipvs", command, out, err)
				}
			}
		})
	}
}
