package kinds

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/nodecheck"
	"github.com/vipkit/vipkit/internal/kernel/legacytables"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// The names under which kube-proxy has objects: chains KUBE-… of iptables, tables of nf_tables, and
// the device kube-ipvs0.
const (
	kubeProxyChains = "kube"
	kubeProxyTable  = "kube-proxy"
)

// remains are objects of another kind or program that exist.
type remains struct {
	objects, commands []string
}

func (r *remains) add(object, command string) {
	r.objects, r.commands = append(r.objects, object), append(r.commands, command)
}

// CheckNode is CheckNode of [proxy.Abilities]: it returns problems of objects of other kinds under their default
// identities, and of kube-proxy, which also translate connections to Services.
func (i *Instance) CheckNode(s proxy.Snapshot) (found []*proxy.Problem) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.nft == nil {
		return nil // it is closed, or the kernel has no tables
	}
	ctx := context.Background()
	for _, k := range i.others() {
		r := i.remainsOf(ctx, k)
		if !i.isDefault || len(r.objects) == 0 {
			continue
		}
		f := nodecheck.Foreign{
			Owner: "an ended backend of kind " + string(k), Objects: r.objects,
			Remedy: "its Cleanup (manifestproxy -cleanup), or " + strings.Join(r.commands, "; "),
		}
		if i.running[k] = mayRun(i.sockets[0], k); i.running[k] {
			f.Owner = "a backend of kind " + string(k) + ", which may still run"
			f.Remedy = "end one of the two, or give one an Identity with another name; then " + f.Remedy
		}
		found = append(found, nodecheck.Coexistence(s, f))
	}
	if r := i.remainsOfKubeProxy(ctx); len(r.objects) > 0 {
		found = append(found, nodecheck.Coexistence(s, nodecheck.Foreign{
			Owner: "kube-proxy", Objects: r.objects, Remedy: "if it no longer runs, " + strings.Join(r.commands, "; "),
		}))
	}
	return found
}

// remainsOf returns what a kind has under its default identity, as far as that can be found at little cost.
func (i *Instance) remainsOf(ctx context.Context, k Kind) (r remains) {
	name := k.Defaults().Name
	switch k {
	case NFTables:
		i.findTables(ctx, &r, name, name+SecondSuffix)
	case Userspace:
		i.findTables(ctx, &r, name)
		mark := k.Defaults().Mark
		for family, option := range map[int]string{unix.AF_INET: "ip", unix.AF_INET6: "ip -6"} {
			found, err := FindRouting(i.at.Netlink(), family, mark)
			if err != nil {
				continue
			}
			if len(found.Rules) > 0 {
				r.add(fmt.Sprintf("%s rule %d", option, RulePriority(mark)), fmt.Sprintf("%s rule del pref %d", option, RulePriority(mark)))
			}
			if len(found.Routes) > 0 {
				r.add(fmt.Sprintf("routes of protocol %d", RouteProtocol), fmt.Sprintf("%[1]s route flush table %[2]d; %[1]s route flush table local proto %[3]d", option, RoutingTable(mark), RouteProtocol))
			}
		}
	case IPTablesNFT:
		i.findChains(ctx, &r, name, withoutChains)
	case IPVS:
		i.findDevice(&r, name+"-ipvs0", "ip link del "+name+"-ipvs0, and ipvsadm -C if no other program uses IPVS")
	case IPTablesLegacy:
		i.findLegacyChains(&r, name, withoutChains)
	}
	return r
}

// withoutChains returns the command that removes the chains of the default identity of iptables.
func withoutChains(save, restore string) string {
	return save + " | grep -v VIPKIT- | " + restore
}

// remainsOfKubeProxy returns what kube-proxy has, except under the instance's own names.
func (i *Instance) remainsOfKubeProxy(ctx context.Context) (r remains) {
	is := func(name string, kinds ...Kind) bool {
		return i.identity.Name == name && slices.ContainsFunc(kinds, func(k Kind) bool { return slices.Contains(i.own, k) })
	}
	if !is(kubeProxyTable, NFTables, Userspace) {
		i.findTables(ctx, &r, kubeProxyTable)
	}
	if !is(kubeProxyChains, IPTablesNFT, IPTablesLegacy) {
		cleanup := func(string, string) string { return "kube-proxy --cleanup" }
		i.findChains(ctx, &r, kubeProxyChains, cleanup)
		i.findLegacyChains(&r, kubeProxyChains, cleanup)
	}
	if !is(kubeProxyChains, IPVS) {
		i.findDevice(&r, kubeProxyChains+"-ipvs0", "kube-proxy --cleanup")
	}
	r.commands = slices.Compact(r.commands)
	return r
}

func (i *Instance) findTables(ctx context.Context, r *remains, names ...string) {
	for _, fam := range nft.Families() {
		for _, name := range names {
			t := nfnetlink.Table{Family: fam, Name: name}
			if found, err := i.nft.HasTable(ctx, t); err == nil && found {
				r.add(fmt.Sprintf("table %v", t), fmt.Sprintf("nft delete table %v", t))
			}
		}
	}
}

// findChains finds chains of iptables' flavour nft by the one that always exists.
func (i *Instance) findChains(ctx context.Context, r *remains, identity string, command func(save, restore string) string) {
	chain := IPTablesNames(identity).Prefix + "SERVICES"
	for _, fam := range nft.Families() {
		program := map[nfnetlink.Family]string{nfnetlink.IPv4: "iptables-nft", nfnetlink.IPv6: "ip6tables-nft"}[fam]
		if _, err := i.nft.Chain(ctx, nfnetlink.Table{Family: fam, Name: "nat"}, chain); err == nil {
			r.add(fmt.Sprintf("chain %s of %s", chain, program), command(program+"-save", program+"-restore"))
		}
	}
}

// findLegacyChains finds chains of iptables' flavour legacy by the one that always exists.
func (i *Instance) findLegacyChains(r *remains, identity string, command func(save, restore string) string) {
	chain := IPTablesNames(identity).Prefix + "SERVICES"
	for _, fam := range [...]v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		program := map[v1.IPFamily]string{v1.IPv4Protocol: "iptables-legacy", v1.IPv6Protocol: "ip6tables-legacy"}[fam]
		var rules []legacytables.Rule
		err := i.at.Do(func() (err error) { rules, err = legacytables.Rules(fam, "nat"); return err })
		if err == nil && slices.ContainsFunc(rules, func(rule legacytables.Rule) bool { return rule.Chain == chain }) {
			r.add(fmt.Sprintf("chain %s of %s", chain, program), command(program+"-save", program+"-restore"))
		}
	}
}

func (i *Instance) findDevice(r *remains, name, command string) {
	if _, err := i.at.Netlink().LinkByName(name); err == nil {
		r.add("device "+name, command)
	}
}
