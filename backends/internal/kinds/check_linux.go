package kinds

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// CheckNode is CheckNode of [proxy.Abilities]: it returns problems of running backends of other kinds, of what
// ipvs has left, which nothing removes, and of objects of kube-proxy. They, too, translate connections to Services.
func (i *Instance) CheckNode(s proxy.Snapshot) (found []*proxy.Problem) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.nft == nil {
		return nil // it is closed, or the kernel has no tables
	}
	for _, k := range i.others() {
		if !i.isDefault {
			break
		}
		if i.running[k] = mayRun(i.sockets[0], k); i.running[k] {
			found = append(found, nodecheck.Coexistence(s, nodecheck.Foreign{
				Owner: "a backend of kind " + string(k) + ", which may still run,", Objects: []string{"backend " + string(k)},
				Remedy: "end one of the two, or give one an Identity with another name",
			}))
		} else if k == IPVS {
			var r remains
			name := k.Defaults().Name + "-ipvs0"
			i.findDevice(&r, name, "its Cleanup (manifestproxy -cleanup), or ip link del "+name+", and ipvsadm -C if no other program uses IPVS")
			found = r.problem(found, s, "an ended backend of kind ipvs", "")
		}
	}
	r := i.remainsOfKubeProxy(context.Background())
	return r.problem(found, s, "kube-proxy", "if it no longer runs, ")
}

// problem appends the problem of objects that exist.
func (r *remains) problem(found []*proxy.Problem, s proxy.Snapshot, owner, condition string) []*proxy.Problem {
	if len(r.objects) == 0 {
		return found
	}
	return append(found, nodecheck.Coexistence(s, nodecheck.Foreign{Owner: owner, Objects: r.objects, Remedy: condition + strings.Join(r.commands, "; ")}))
}

// remainsOfKubeProxy returns what kube-proxy has, except under the instance's own names.
func (i *Instance) remainsOfKubeProxy(ctx context.Context) (r remains) {
	const cleanup = "kube-proxy --cleanup"
	is := func(name string, kinds ...Kind) bool {
		return i.identity.Name == name && slices.ContainsFunc(kinds, func(k Kind) bool { return slices.Contains(i.own, k) })
	}
	for _, fam := range nft.Families() {
		t := nfnetlink.Table{Family: fam, Name: kubeProxyTable}
		if found, err := i.nft.HasTable(ctx, t); err == nil && found && !is(kubeProxyTable, NFTables, Userspace) {
			r.add(fmt.Sprintf("table %v", t), fmt.Sprintf("nft delete table %v", t))
		}
	}
	if !is(kubeProxyChains, IPTablesNFT, IPTablesLegacy) {
		for _, object := range i.chainsOfKubeProxy(ctx) {
			r.add(object, cleanup)
		}
	}
	if !is(kubeProxyChains, IPVS) {
		i.findDevice(&r, kubeProxyChains+"-ipvs0", cleanup)
	}
	r.commands = slices.Compact(r.commands)
	return r
}

// chainsOfKubeProxy finds the chains of both flavours of iptables by the one that always exists.
func (i *Instance) chainsOfKubeProxy(ctx context.Context) (found []string) {
	chain := IPTablesNames(kubeProxyChains).Prefix + "SERVICES"
	for _, f := range [...]struct {
		program string
		nft     nfnetlink.Family
		legacy  v1.IPFamily
	}{{"iptables", nfnetlink.IPv4, v1.IPv4Protocol}, {"ip6tables", nfnetlink.IPv6, v1.IPv6Protocol}} {
		if _, err := i.nft.Chain(ctx, nfnetlink.Table{Family: f.nft, Name: "nat"}, chain); err == nil {
			found = append(found, fmt.Sprintf("chain %s of %s-nft", chain, f.program))
		}
		var rules []legacytables.Rule
		err := i.at.Do(func() (err error) { rules, err = legacytables.Rules(f.legacy, "nat"); return err })
		if err == nil && slices.ContainsFunc(rules, func(rule legacytables.Rule) bool { return rule.Chain == chain }) {
			found = append(found, fmt.Sprintf("chain %s of %s-legacy", chain, f.program))
		}
	}
	return found
}

func (i *Instance) findDevice(r *remains, name, command string) {
	if _, err := i.at.Netlink().LinkByName(name); err == nil {
		r.add("device "+name, command)
	}
}
