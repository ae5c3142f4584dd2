package backendtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// reversePathTable is the filter that firewalld has for IPv6.
const reversePathTable = `table inet firewalld {
	chain filter_PREROUTING {
		type filter hook prerouting priority 10
		icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
		meta nfproto ipv6 fib saddr . mark . iif oif missing drop
	}
}
`

// firewall is a table of nft that lets through what the rules accept.
const firewall = `table inet firewall {
	chain forward {
		type filter hook forward priority 10; policy drop;
		ct state established,related accept
%s	}
}
`

// settle gives the node the settings and the neighbours of the world.
func (b *testbed) settle(t testing.TB) {
	t.Helper()
	var errs []error
	for name, value := range b.world.sysctls {
		errs = append(errs, b.node().Sysctl(name, value))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	tables := b.world.tables
	if b.world.forwards != "" {
		tables += b.fence(t)
	}
	if tables == "" {
		return
	}
	if err := findNFT(t, b.node()).load(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
}

// fence sets the policy DROP by all programs named iptables that there are, and gives a
// table for nft that does the same.
func (b *testbed) fence(t testing.TB) string {
	t.Helper()
	var accept strings.Builder
	for i, name := range [...]string{"iptables", "ip6tables"} {
		rules := "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
		if b.world.forwards == forwardsPods {
			p := podRanges()[i]
			rules += fmt.Sprintf("-A FORWARD -s %s -j ACCEPT\n-A FORWARD -d %s -j ACCEPT\n", p, p)
			family := [...]string{"ip", "ip6"}[i]
			fmt.Fprintf(&accept, "\t\t%s saddr %s accept\n\t\t%s daddr %s accept\n", family, p, family, p)
		}
		for _, flavour := range b.iptables() {
			b.runAtNode(t, rules+"COMMIT\n", strings.Replace(flavour, "iptables", name, 1)+"-restore")
		}
	}
	return fmt.Sprintf(firewall, &accept)
}
