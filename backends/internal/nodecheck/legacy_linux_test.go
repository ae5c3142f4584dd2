package nodecheck

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/proxy"
)

// A chain of the legacy tables that drops by default is named, unless a rule may accept what it would drop.
func TestLegacyFirewalls(t *testing.T) {
	s := proxy.NewSnapshot(&proxy.Node{Name: "node"}, healthPort(v1.IPv4Protocol), healthPort(v1.IPv6Protocol))
	const forward, input = "chain FORWARD of ", "chain INPUT of "
	for rules, want := range map[string][]string{
		"":                nil,
		":OUTPUT DROP\n":  nil,
		":FORWARD DROP\n": {forward},
		":INPUT DROP\n":   {input},
		":FORWARD DROP\n:A -\n:B -\n-A A -p tcp -j B\n":                                                              {forward},
		":FORWARD DROP\n:A -\n-A A -j ACCEPT\n":                                                                      nil,
		":FORWARD DROP\n-A FORWARD -i lo -j ACCEPT\n-A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n":                  {forward},
		":FORWARD DROP\n-A FORWARD -i eth+ -j ACCEPT\n":                                                              nil,
		":FORWARD DROP\n-A FORWARD ! -i docker0 -j ACCEPT\n":                                                         nil,
		":FORWARD DROP\n-A FORWARD -p gre -j ACCEPT\n":                                                               {forward},
		":FORWARD DROP\n-A FORWARD ! -p gre -j ACCEPT\n":                                                             nil,
		":FORWARD DROP\n-A FORWARD -p tcp -m tcp --dport 80 -j ACCEPT\n":                                             {forward},
		":FORWARD DROP\n-A FORWARD -p tcp -m tcp --sport 80 -j ACCEPT\n":                                             nil,
		":FORWARD DROP\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n":                           {forward},
		":FORWARD DROP\n-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT\n":                                          nil,
		":FORWARD DROP\n-A FORWARD -m conntrack --ctproto tcp -j ACCEPT\n":                                           nil,
		":FORWARD DROP\n-A FORWARD -m conntrack ! --ctstate INVALID -j ACCEPT\n":                                     nil,
		":FORWARD DROP\n-A FORWARD -m conntrack ! --ctstate NEW -j ACCEPT\n":                                         {forward},
		":INPUT DROP\n-A INPUT -p tcp -m tcp ! --dport 22 -j ACCEPT\n":                                               nil,
		":INPUT DROP\n-A INPUT -p udp -m udp ! --dport 22 -j ACCEPT\n":                                               nil,
		":INPUT DROP\n-A INPUT -p tcp -m multiport ! --dports 22 -j ACCEPT\n":                                        nil,
		":FORWARD DROP\n-A FORWARD -p tcp -m tcp ! --dport 22 -j ACCEPT\n":                                           {forward},
		":FORWARD DROP\n-A FORWARD -j LOG\n-A FORWARD -p udp -j DROP\n-A FORWARD -j REJECT\n":                        {forward},
		":INPUT DROP\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n-A INPUT -p udp -m udp --dport 53 -j ACCEPT\n":    {input},
		":INPUT DROP\n-A INPUT -p tcp -m tcp --dport 30000:32767 -j ACCEPT\n":                                        nil,
		":INPUT DROP\n-A INPUT -p tcp -m multiport --dports 22,32000 -j ACCEPT\n":                                    nil,
		":INPUT DROP\n:FORWARD DROP\n-A INPUT -p tcp -m multiport --dports 22,32000 -j ACCEPT\n":                     {forward},
		":INPUT DROP\n:FORWARD DROP\n-A INPUT -p tcp -m conntrack --ctstate NEW -m comment --comment hi -j ACCEPT\n": nil,
	} {
		ns := netnstest.NewNS(t)
		wanted := []string{}
		for _, program := range []string{"iptables-legacy", "ip6tables-legacy"} {
			if rules != "" {
				if _, err := netnstest.Run(t, ns, "*filter\n"+rules+"COMMIT\n", program+"-restore"); err != nil {
					t.Errorf("%s: %v", rules, err)
					continue
				}
			}
			for _, w := range want {
				wanted = append(wanted, w+program)
			}
		}
		got := []string{}
		err := ns.Do(func() error {
			for _, p := range LegacyFirewalls(s) {
				got = append(got, p.Field)
			}
			return nil
		})
		if diff := cmp.Diff(wanted, got); err != nil || diff != "" {
			t.Errorf("%s: error %v, problems (-want +got):\n%s", rules, err, diff)
		}
	}
}

// A chain that no packet of a Service passes is no problem.
func TestFirewallsOfOtherFamilies(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	const chain = " fw { chain f { type filter hook forward priority 0; policy drop; }; }\n"
	if _, err := netnstest.Run(t, ns, "table ip"+chain+"table ip6"+chain, netnstest.NFT(t), "-f", "-"); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"iptables-legacy", "ip6tables-legacy"} {
		if _, err := netnstest.Run(t, ns, "*filter\n:FORWARD DROP\nCOMMIT\n", program+"-restore"); err != nil {
			t.Fatal(err)
		}
	}
	for family, want := range map[v1.IPFamily][]string{
		v1.IPv4Protocol: {"chain f of table ip fw", "chain FORWARD of iptables-legacy"},
		v1.IPv6Protocol: {"chain f of table ip6 fw", "chain FORWARD of ip6tables-legacy"},
	} {
		s := proxy.NewSnapshot(&proxy.Node{Name: "node"}, healthPort(family))
		var got []string
		err := ns.Do(func() error {
			for _, p := range append(Firewalls(s), LegacyFirewalls(s)...) {
				got = append(got, p.Field)
			}
			return nil
		})
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("Services of %s: error %v, problems (-want +got):\n%s", family, err, diff)
		}
	}
}

// The remedies for any number of health check node ports work as they stand.
func TestFirewallRemedies(t *testing.T) {
	t.Parallel()
	var all []*proxy.ServicePort
	for i := range 40 {
		p := healthPort(v1.IPv4Protocol)
		p.Name.Name, p.HealthCheckNodePort = strconv.Itoa(i), uint16(32_000+2*i)
		all = append(all, p)
	}
	s, ns := proxy.NewSnapshot(&proxy.Node{Name: "node"}, all...), netnstest.NewNS(t)
	for _, c := range []struct {
		firewall []string // a command
		input    string
		remedy   func(text string) []string
		check    func(proxy.Snapshot) []*proxy.Problem
	}{
		{
			[]string{"iptables-legacy-restore"}, "*filter\n:INPUT DROP\nCOMMIT\n",
			func(text string) []string { return []string{"sh", "-c", text} }, LegacyFirewalls,
		},
		{
			[]string{netnstest.NFT(t), "-f", "-"}, "table ip fw { chain i { type filter hook input priority 0; policy drop; }; }\n",
			func(text string) []string {
				return []string{netnstest.NFT(t), "add rule ip fw i " + strings.TrimPrefix(text, "add the rule: ")}
			},
			func(s proxy.Snapshot) []*proxy.Problem { return Firewalls(s) },
		},
	} {
		if _, err := netnstest.Run(t, ns, c.input, c.firewall[0], c.firewall[1:]...); err != nil {
			t.Fatal(err)
		}
		var found []*proxy.Problem
		check := func() error { found = c.check(s); return nil }
		if err := ns.Do(check); err != nil || len(found) != 1 {
			t.Errorf("%s: error %v, problems %v, want 1", c.firewall[0], err, found)
			continue
		}
		_, text, _ := strings.Cut(found[0].Err.Error(), "remedy: ")
		run := c.remedy(text)
		if _, err := netnstest.Run(t, ns, "", run[0], run[1:]...); err != nil {
			t.Errorf("remedy %q: %v", text, err)
		}
		if err := ns.Do(check); err != nil || len(found) != 0 {
			t.Errorf("after the remedy %q: error %v, problems %v, want none", text, err, found)
		}
	}
}
