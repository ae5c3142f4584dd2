package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// layout is the table of a family; IP stands for ip or ip6.
const layout = `table IP custom {
	set any-cluster-ip { typeof IP daddr; }
	set any-hairpin { typeof IP saddr . IP daddr; }
	map services { typeof IP daddr . meta l4proto . th dport : verdict; }
	map nodeports { typeof meta l4proto . th dport : verdict; }
	chain services {}
	chain prerouting { type nat hook prerouting priority -100; jump services; }
	chain output { type nat hook output priority -100; jump services; }
	chain postrouting { type nat hook postrouting priority 100;
		meta mark & 0x4000 != 0 meta mark set meta mark & 0xffffbfff masquerade
		ct status dnat IP saddr . IP daddr @any-hairpin masquerade
	}
}
`

// A key names an object in nft's language, such as "chain ip custom services", and its
// value is the text that makes it. The kind "refuse" stands for a service port that
// cannot be served; its value says why.
type key string

func (k key) is(kind string) bool { return strings.HasPrefix(string(k), kind+" ") }
func (k key) Rank() int {
	return slices.IndexFunc([]string{"table", "chain", "element", "refuse"}, k.is)
}
func (k key) Shared() bool { return strings.Contains(string(k), " any-") }

type object = backends.Object[key, string]

// newChain is a chain with its rules.
func newChain(ip, name string, rules []string) object {
	return object{Key: key("chain " + ip + " custom " + name), Value: fmt.Sprintf(
		"table %s custom {\nchain %s {\n%s\n}\n}\n", ip, name, strings.Join(rules, "\n"))}
}

// render gives what a service port needs; without one, what is always there.
func render(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	if port == nil {
		for _, ip := range []string{"ip", "ip6"} {
			table := object{Key: key("table " + ip + " custom"), Value: strings.ReplaceAll(layout, "IP", ip)}
			out = append(out, table, newChain(ip, "services", lookups(node, ip)))
		}
		return out
	}
	if port.Affinity.Enabled() {
		return append(out, object{Key: key("refuse " + port.Name.String()), Value: "session affinity is not supported"})
	}
	ip := map[bool]string{true: "ip", false: "ip6"}[port.Name.Family == "IPv4"]
	element := func(at, leadsTo string) {
		name := "element " + ip + " custom " + at
		out = append(out, object{Key: key(name + " }"), Value: "add " + name + leadsTo + " }\n"})
	}
	for _, f := range port.Frontends {
		addr, at := f.Addr.Addr().String(), fmt.Sprintf("%s . %d", protocol(port), f.Addr.Port())
		name := "to-" + strings.NewReplacer(" . ", "-", ":", "_").Replace(addr+" . "+at)
		out = append(out, newChain(ip, name, rules(node, port, f, ip)))
		if f.Kind == proxy.NodePort {
			element("nodeports { "+at, " : goto "+name)
		} else {
			element("services { "+addr+" . "+at, " : goto "+name)
		}
		if f.Kind == proxy.ClusterIP {
			element("any-cluster-ip { "+addr, "")
		}
	}
	for _, e := range slices.Concat(port.Cluster, port.Local) {
		element(fmt.Sprintf("any-hairpin { %s . %[1]s", e.Addr.Addr()), "")
	}
	return out
}

func protocol(port *proxy.ServicePort) string { return strings.ToLower(string(port.Name.Protocol)) }

// each writes a text for every prefix of a family.
func each(format, ip string, prefixes []netip.Prefix) (out []string) {
	for _, p := range prefixes {
		if p.Addr().Is4() == (ip == "ip") {
			out = append(out, fmt.Sprintf(format, ip, p))
		}
	}
	return out
}

// lookups are the rules that every new connection meets first.
func lookups(node *proxy.Node, ip string) []string {
	const nodePorts = "fib daddr type local meta l4proto . th dport vmap @nodeports"
	loopback := map[string]string{"ip": "ip daddr 127.0.0.0/8 return", "ip6": "ip6 daddr ::1 return"}[ip]
	out := []string{loopback, ip + " daddr . meta l4proto . th dport vmap @services"}
	if node.NodePorts.All {
		out = append(out, nodePorts)
	}
	return slices.Concat(out, each("%s daddr %s "+nodePorts, ip, node.NodePorts.Prefixes),
		[]string{ip + " daddr @any-cluster-ip reject"}, each("%s daddr %s drop", ip, node.ServiceCIDRs))
}

// rules say, by source, what becomes of a connection to a frontend.
func rules(node *proxy.Node, port *proxy.ServicePort, f proxy.Frontend, ip string) (out []string) {
	if f.Restricted {
		out = append(out, strings.Join(each("%s saddr != %s ", ip, f.AllowedSources), "")+"drop")
	}
	pod := verdict(port, f.FromInside, ip, proxy.MasqueradeAlways)
	out = append(out, each("%s saddr %s "+pod, ip, node.LocalTraffic.Sources)...)
	for _, name := range []string{node.LocalTraffic.Interface, node.LocalTraffic.InterfacePrefix + "*"} {
		if name != "" && name != "*" {
			out = append(out, fmt.Sprintf("iifname %q %s", name, pod))
		}
	}
	return append(out, "fib saddr type local "+verdict(port, f.FromInside, ip, proxy.MasqueradeNonPods),
		verdict(port, f.FromOutside, ip, proxy.MasqueradeNonPods))
}

// verdict ends a rule with a route. It masquerades from the given level on.
func verdict(port *proxy.ServicePort, r proxy.TrafficRoute, ip string, from proxy.Masquerade) string {
	if r.Action != proxy.Forward {
		return r.Action.String() // nft has the same words
	}
	var slots []string
	for i, e := range port.Pool(r.Pool) {
		slots = append(slots, fmt.Sprintf("%d : %s . %d", i, e.Addr.Addr(), e.Addr.Port()))
	}
	mark := map[bool]string{true: "meta mark set meta mark | 0x4000 "}[r.Masquerade >= from]
	return fmt.Sprintf("%smeta l4proto %s dnat %s to numgen random mod %d map { %s }",
		mark, protocol(port), ip, len(slots), strings.Join(slots, ", "))
}

// kernel is the edge: the command that runs nft.
type kernel []string

// List implements [backends.Target]. It does not look: whatever our tables are, or if
// there are none, gets a value that nobody wants, so that all is made anew.
func (kernel) List(context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		_ = yield(object{Key: "table ip custom"}, nil) && yield(object{Key: "table ip6 custom"}, nil)
	}
}

// Commit implements [backends.Target] by one run of nft, which is one transaction.
func (k kernel) Commit(ctx context.Context, ops []backends.Op[key, string]) error {
	var script strings.Builder
	for _, o := range ops {
		switch {
		case o.Key.is("refuse"):
			return errors.New(o.Value)
		case o.Kind == backends.Add:
		case o.Key.is("table"): // which may not be there
			fmt.Fprintf(&script, "add %s\ndelete %[1]s\n", o.Key)
		case o.Key.is("chain") && o.Kind == backends.Replace: // it is in use
			fmt.Fprintf(&script, "flush %s\n", o.Key)
		default:
			fmt.Fprintf(&script, "delete %s\n", o.Key)
		}
		if o.Kind != backends.Remove {
			script.WriteString(o.Value)
		}
	}
	cmd := exec.CommandContext(ctx, k[0], k[1:]...)
	cmd.Stdin = strings.NewReader(script.String())
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case cmd.ProcessState.ExitCode() != 1: // it was killed, perhaps after it had done all
		err = fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
	case strings.Contains(string(out), "No such file or directory"):
		err = fmt.Errorf("%w: %w", backends.ErrConflict, err)
	}
	return fmt.Errorf("nft: %w: %s", err, out)
}
