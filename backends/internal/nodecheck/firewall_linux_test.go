package nodecheck

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// healthPort returns a service port that has a health check node port.
func healthPort(f v1.IPFamily) *proxy.ServicePort {
	return &proxy.ServicePort{Name: proxy.ServicePortName{Family: f}, HealthCheckNodePort: 32_000}
}

// A chain that drops by default is named, unless a rule may accept what it would drop.
func TestFirewalls(t *testing.T) {
	t.Parallel()
	s := proxy.NewSnapshot(&proxy.Node{Name: "node"}, healthPort(v1.IPv4Protocol))
	const forward, input = "chain f of table ip fw", "chain i of table ip fw"
	for rules, want := range map[string][]string{
		"chain f { type filter hook forward priority 0; policy accept; }":                                                            nil,
		"chain f { type filter hook forward priority 0; policy drop; }":                                                              {forward},
		"chain f { type nat hook prerouting priority 0; policy drop; }":                                                              nil,
		"chain f { type filter hook forward priority 0; policy drop; ct state established,related accept; }":                         {forward},
		"chain f { type filter hook forward priority 0; policy drop; iifname docker0 accept; meta l4proto icmp accept; }":            {forward},
		"chain f { type filter hook forward priority 0; policy drop; tcp dport 80 accept; }":                                         {forward},
		"chain f { type filter hook forward priority 0; policy drop; ct state established,related accept; ct status dnat accept; }":  nil,
		"chain a { ip daddr 10.0.0.0/8 accept; }\nchain f { type filter hook forward priority 0; policy drop; jump a; }":             nil,
		"chain i { type filter hook input priority 0; policy drop; iif lo accept; tcp dport 22 accept; udp dport 53 accept; }":       {input},
		"chain i { type filter hook input priority 0; policy drop; tcp dport 32000 accept; }":                                        nil,
		"chain i { type filter hook input priority 0; policy drop; tcp dport 30000-32767 accept; }":                                  nil,
		"chain i { type filter hook input priority 0; policy drop; tcp dport 1-31999 accept; tcp dport != 32001-65535 accept; }":     nil,
		"chain i { type filter hook input priority 0; policy drop; tcp dport 1-31999 accept; tcp dport >= 32001 accept; }":           {input},
		"chain i { type filter hook input priority 0; policy drop; tcp dport { 22, 32000 } accept; }":                                nil,
		"chain i { type filter hook input priority 0; policy drop; ip saddr 192.0.2.0/24 accept; }":                                  nil,
		"set x { typeof numgen random mod 2; }\nchain i { type filter hook input priority 0; policy drop; numgen random mod 2 @x; }": {input},
	} {
		ns := netnstest.NewNS(t)
		if _, err := netnstest.Run(t, ns, "table ip fw {\n"+rules+"\n}\n", netnstest.NFT(t), "-f", "-"); err != nil {
			t.Errorf("%s: %v", rules, err)
			continue
		}
		var got []string
		check := func(except ...nfnetlink.Table) {
			got = nil
			err := ns.Do(func() error {
				for _, p := range Firewalls(s, except...) {
					got = append(got, p.Field)
				}
				return nil
			})
			testenv.NoError(t, err)
		}
		if check(); !cmp.Equal(got, want) {
			t.Errorf("%s: got problems %q, want %q", rules, got, want)
		}
		if check(nfnetlink.Table{Family: nfnetlink.IPv4, Name: "fw"}); len(got) > 0 {
			t.Errorf("%s, of the dataplane's own table: got problems %q, want none", rules, got)
		}
	}
}

// Without Services nothing is dropped.
func TestFirewallsWithoutServices(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	const rules = "table inet fw { chain f { type filter hook forward priority 0; policy drop; }; }\n"
	if _, err := netnstest.Run(t, ns, rules, netnstest.NFT(t), "-f", "-"); err != nil {
		t.Fatal(err)
	}
	for n, s := range []proxy.Snapshot{proxy.NewSnapshot(&proxy.Node{Name: "node"}), proxy.NewSnapshot(&proxy.Node{Name: "node"}, &proxy.ServicePort{})} {
		var found []*proxy.Problem
		err := ns.Do(func() error { found = Firewalls(s); return nil })
		if err != nil || len(found) != n {
			t.Errorf("%d Services: got %d problems, error %v, want %d", n, len(found), err, n)
		}
		for _, p := range found {
			if p.Field != "chain f of table inet fw" || !strings.Contains(p.Err.Error(), "ct status dnat accept") {
				t.Errorf("problem: got %v, want one that names the rule which helps", p)
			}
		}
	}
}

// Where a dataplane delivers packets to its own sockets, a chain that drops what arrives by default is named,
// unless a rule may accept these packets.
func TestDeliveries(t *testing.T) {
	s := serving(proxy.NewSnapshot(&proxy.Node{Name: "node"}), v1.IPv6Protocol)
	for _, c := range []struct {
		rules           string
		at16421, marked bool // a problem is wanted, if packets have this port, or any port and a mark
	}{
		{"", true, true},
		{"ct status dnat accept", false, false}, // it may hold for marked packets, too
		{"meta mark & 0x40 == 0x40 accept", false, false},
		{"ct state established,related accept; iif lo accept; tcp dport 22 accept", true, true},
		{"meta l4proto { tcp, udp } th dport 16421 accept", false, true},
		{"tcp dport 16000-17000 accept", false, true},
		{"tcp dport 30000-32767 accept", true, true},
	} {
		ns := netnstest.NewNS(t)
		text := "table ip6 fw {\nchain f { type filter hook forward priority 0; policy drop; }\nchain i { type filter hook input priority 0; policy drop; " + c.rules + "; }\n}\n"
		if _, err := netnstest.Run(t, ns, text, netnstest.NFT(t), "-f", "-"); err != nil {
			t.Errorf("%s: %v", c.rules, err)
			continue
		}
		for d, want := range map[Delivery]bool{{Rule: Rule{NFT: "some rule"}, Port: 16421}: c.at16421, {Rule: Rule{NFT: "some rule"}}: c.marked, {}: false} {
			var found []*proxy.Problem
			testenv.NoError(t, ns.Do(func() error { found = Deliveries(s, d); return nil }))
			switch {
			case len(found) > 1 || len(found) == 1 != want:
				t.Errorf("%s: %+v: got problems %v, want one: %v", c.rules, d, found, want)
			case want && (found[0].Field != "chain i of table ip6 fw" || !strings.HasSuffix(found[0].Err.Error(), "add the rule: some rule")):
				t.Errorf("%s: problem: got %v, want one of chain i that names the rule", c.rules, found[0])
			}
		}
	}
}
