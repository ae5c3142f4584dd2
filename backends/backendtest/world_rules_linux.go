package backendtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// reversePathTable is the reverse path filter of firewalld for IPv6.
const reversePathTable = `table inet firewalld {
	chain filter_PREROUTING {
		type filter hook prerouting priority 10
		icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
		meta nfproto ipv6 fib saddr . mark . iif oif missing drop
	}
}
`

// policyMarks are the marks of an engine of network policies: one of connections that it has
// checked, restored to their packets, and one that packets have only while it checks them.
const policyMarks = `table inet policies {
	chain prerouting {
		type filter hook prerouting priority -150
		ct mark & 0x00020000 != 0 meta mark set meta mark | 0x00020000
	}
	chain output {
		type route hook output priority -150
		ct mark & 0x00020000 != 0 meta mark set meta mark | 0x00020000
	}
	chain input {
		type filter hook input priority 0
		jump look
	}
	chain forward {
		type filter hook forward priority 0
		jump look
	}
	chain look {
		meta mark set meta mark | 0x00010000
		ct mark set ct mark | 0x00020000
		meta mark set meta mark & 0xfffeffff
	}
	chain postrouting {
		type filter hook postrouting priority -150
		ct mark set ct mark | 0x00020000
	}
}
`

// restoredMarks saves all bits of packet marks in the connection mark and restores them to
// its packets, also the bits of other programs.
const restoredMarks = `table inet restoring {
	chain prerouting {
		type filter hook prerouting priority -150
		ct mark != 0 meta mark set ct mark
	}
	chain output {
		type route hook output priority -150
		ct mark != 0 meta mark set ct mark
	}
	chain postrouting {
		type filter hook postrouting priority -150
		ct mark set meta mark
	}
}
`

// connectionMarks marks connections that do not start at a pod of the node, for podRules.
const connectionMarks = `table inet routing {
	chain prerouting {
		type filter hook prerouting priority -150
		ct state new iifname { eth0, eth1, eth2, eth3 } ct mark set ct mark | 0x00000080
		iifname != { eth0, eth1, eth2, eth3 } ct mark & 0x00000080 != 0 meta mark set meta mark | 0x00000080
	}
}
`

// podsTable is the routing table of the node's pods.
const podsTable = 310

// podRules route packets from pods of the node by a table of their own, except answers to
// hosts without a route in it, as the CNI plugin of AWS does with several network
// interfaces.
func podRules() (all []netns.Rule) {
	for i, p := range snapshots.Prefixes("10.0.0.0/24", "fd00:10::/64") {
		family := [...]int{unix.AF_INET, unix.AF_INET6}[i]
		all = append(all,
			netns.Rule{Priority: 512, Family: family, To: p, Table: unix.RT_TABLE_MAIN},
			netns.Rule{Priority: 1024, Family: family, Mark: 0x80, Mask: 0x80, Table: unix.RT_TABLE_MAIN},
			netns.Rule{Priority: 1536, Family: family, From: p, Table: podsTable})
	}
	return all
}

// podRoutes are the routes of pods: to the other node, its pods, and the gateway.
func podRoutes() (all []netns.Route) {
	for _, s := range cluster.Hosts() {
		for _, a := range s.Addrs {
			switch {
			case s.Name == cluster.Gateway:
				all = append(all, netns.Route{To: cluster.Everything(a), Link: "eth0", Via: a, Table: podsTable})
			case s.Name == cluster.RemoteNode:
				all = append(all, netns.Route{To: cluster.Single(a), Link: s.Link, Table: podsTable})
			case s.Uplink == cluster.RemoteNode:
				other := cluster.Find(cluster.RemoteNode)
				all = append(all, netns.Route{To: cluster.Single(a), Link: other.Link, Via: other.Addr(ipaddr.FamilyOf(a)), Table: podsTable})
			}
		}
	}
	return all
}

// firewall is a table of nft that drops forwarded packets that its rules do not accept.
const firewall = `table inet firewall {
	chain forward {
		type filter hook forward priority 10; policy drop;
		ct state established,related accept
%s	}
}
`

// configureWorld adds the settings and the foreign rules of the world to the node.
func (b *testbed) configureWorld(t testing.TB) {
	t.Helper()
	var errs []error
	if b.world.bridge != nil {
		filtered := map[bool]string{true: "1", false: "0"}[b.world.bridge.filtered]
		errs = append(errs,
			b.node().Sysctl("net/bridge/bridge-nf-call-iptables", filtered),
			b.node().Sysctl("net/bridge/bridge-nf-call-ip6tables", filtered))
	}
	for _, r := range b.world.routes {
		errs = append(errs, b.node().AddRoute(r))
	}
	for _, r := range b.world.rules {
		errs = append(errs, b.node().AddRule(r))
	}
	testenv.NoError(t, errors.Join(errs...))
	tables := b.world.tables
	if b.world.forwards != "" {
		tables += b.restrictForwarding(t)
	}
	if tables == "" {
		return
	}
	testenv.NoError(t, findNFT(t, b.node()).load(tables))
}

// restrictForwarding sets the policy DROP with all installed flavours of iptables, and
// returns a table for nft that does the same.
func (b *testbed) restrictForwarding(t testing.TB) string {
	t.Helper()
	var accept strings.Builder
	for i, name := range [...]string{"iptables", "ip6tables"} {
		rules := "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"
		if b.world.forwards == forwardsPods {
			p := cluster.PodRanges()[i]
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
