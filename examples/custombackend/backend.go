package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// layout rebuilds the table of a family; IP stands for ip or ip6.
const layout = `delete table IP custom
table IP custom {
	set any-cluster-ip { typeof IP daddr; }
	set any-hairpin { typeof IP saddr . IP daddr; }
	map services { typeof IP daddr . meta l4proto . th dport : verdict; }
	map nodeports { typeof meta l4proto . th dport : verdict; }
	chain services {}
	chain refuse { meta l4proto tcp reject with tcp reset; reject; }
	chain prerouting { type nat hook prerouting priority -100; jump services; }
	chain output { type nat hook output priority -100; jump services; }
	chain input { type nat hook input priority 100; meta mark & 0x4000 != 0 meta mark set meta mark & 0xffffbfff; }
	chain postrouting { type nat hook postrouting priority 100;
		meta mark & 0x4000 != 0 meta mark set meta mark & 0xffffbfff masquerade fully-random
		ct status dnat IP saddr . IP daddr @any-hairpin masquerade fully-random
	}
}
`

// A key names an object in nft's language, such as "chain ip custom services". The value of an
// object is the script that adds or replaces it.
type key string
type object = backends.Object[key, string]

func (k key) Rank() int    { return strings.IndexByte("tce", k[0]) } // table, chain, element
func (k key) Shared() bool { return strings.Contains(string(k), " any-") }

func chain(ip, name, rules string) object {
	const text = "add chain %[1]s custom %[2]s\nflush chain %[1]s custom %[2]s\ntable %[1]s custom {\nchain %[2]s {\n%[3]s}\n}\n"
	return object{Key: key("chain " + ip + " custom " + name), Value: fmt.Sprintf(text, ip, name, rules)}
}

func element(ip, at, leadsTo string) object {
	return object{Key: key("element " + ip + " custom " + at + " }"), Value: "add element " + ip + " custom " + at + leadsTo + " }\n"}
}

// render appends the objects of a service port, or without one, those that always exist.
func render(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	if port == nil {
		for _, ip := range []string{"ip", "ip6"} {
			table := object{Key: key("table " + ip + " custom"), Value: strings.ReplaceAll(layout, "IP", ip)}
			out = append(out, table, chain(ip, "services", lookups(node, ip)))
		}
		return out
	}
	ip := map[bool]string{true: "ip", false: "ip6"}[port.Name.Family == "IPv4"]
	for _, f := range port.Frontends {
		addr, at := f.Addr.Addr().String(), fmt.Sprintf("%s . %d", strings.ToLower(string(port.Name.Protocol)), f.Addr.Port())
		name, place := "to-"+strings.NewReplacer(" . ", "-", ":", "_").Replace(addr+" . "+at), "services { "+addr+" . "+at
		if f.Kind == proxy.NodePort {
			place = "nodeports { " + at
		}
		if f.Kind == proxy.ClusterIP {
			out = append(out, element(ip, "any-cluster-ip { "+addr, ""))
		}
		out = append(out, chain(ip, name, rules(node, port, f, ip)), element(ip, place, " : goto "+name))
	}
	for _, e := range slices.Concat(port.Cluster, port.Local) {
		out = append(out, element(ip, fmt.Sprintf("any-hairpin { %s . %[1]s", e.Addr.Addr()), ""))
	}
	return out
}

// each formats every prefix of a family.
func each(format, ip string, prefixes []netip.Prefix) (out string) {
	for _, p := range prefixes {
		if p.Addr().Is4() == (ip == "ip") {
			out += fmt.Sprintf(format, ip, p)
		}
	}
	return out
}

// lookups returns the rules that every new connection passes first.
func lookups(node *proxy.Node, ip string) string {
	nodePorts := each("%s daddr %s fib daddr type local meta l4proto . th dport vmap @nodeports\n", ip, node.NodePorts.Prefixes)
	if node.NodePorts.All {
		nodePorts = "fib daddr type local meta l4proto . th dport vmap @nodeports\n"
	}
	return ip + " daddr " + map[string]string{"ip": "127.0.0.0/8", "ip6": "::1"}[ip] + " return\n" +
		ip + " daddr . meta l4proto . th dport vmap @services\n" + nodePorts +
		"fib daddr type local return\n" + // a program of the node may answer
		ip + " daddr @any-cluster-ip goto refuse\n" + each("%s daddr %s drop\n", ip, node.ServiceCIDRs)
}

// rules returns the rules that decide, by source, what happens to a connection to a frontend.
func rules(node *proxy.Node, port *proxy.ServicePort, f proxy.Frontend, ip string) (out string) {
	if f.Restricted {
		out = each("%s saddr != %s ", ip, f.AllowedSources) + "drop\n"
	}
	fromPod, fromNode, fromOutside := f.Routes()
	pod := verdict(port, fromPod, ip)
	out += each("%s saddr %s "+pod, ip, node.LocalTraffic.Sources)
	for _, name := range []string{node.LocalTraffic.Interface, node.LocalTraffic.InterfacePrefix + "*"} {
		if name != "" && name != "*" {
			out += fmt.Sprintf("iifname %q %s", name, pod)
		}
	}
	return out + "fib saddr type local " + verdict(port, fromNode, ip) + verdict(port, fromOutside, ip)
}

// verdict returns the end of a rule that carries out a route.
func verdict(port *proxy.ServicePort, r proxy.TrafficRoute, ip string) string {
	if r.Action == proxy.Reject {
		return "goto refuse\n"
	}
	if r.Action != proxy.Forward {
		return r.Action.String() + "\n" // nft has the same words
	}
	var slots []string
	for i, e := range port.Pool(r.Pool) {
		slots = append(slots, fmt.Sprintf("%d : %s . %d", i, e.Addr.Addr(), e.Addr.Port()))
	}
	mark := map[bool]string{true: "meta mark set meta mark | 0x4000 "}[r.Masquerade == proxy.MasqueradeAlways]
	return fmt.Sprintf("%smeta l4proto { tcp, udp, sctp } dnat %s to numgen random mod %d map { %s }\n", mark, ip, len(slots), strings.Join(slots, ", "))
}
