package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

var errNodeGone = errors.New("the Node object was deleted; its last state stays in effect")

// nodeFacts is the content of a Node object that concerns a proxy.
type nodeFacts struct {
	zone      string
	addresses []netip.Addr
	podCIDRs  []netip.Prefix
}

func readNode(n *v1.Node) (nodeFacts, []*Problem) {
	facts := nodeFacts{zone: n.Labels[v1.LabelTopologyZone]}
	var problems []*Problem
	report := func(field string, err error) {
		problems = append(problems, &Problem{Kind: "Node", NamespacedName: types.NamespacedName{Name: n.Name}, Field: field, Reason: InvalidValue, Err: err})
	}
	facts.addresses = appendAddresses(facts.addresses, n, v1.NodeInternalIP, report)
	facts.addresses = appendAddresses(facts.addresses, n, v1.NodeExternalIP, report)
	cidrs, field := n.Spec.PodCIDRs, "spec.podCIDRs"
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs, field = []string{n.Spec.PodCIDR}, "spec.podCIDR"
	}
	for _, text := range cidrs {
		p, err := ipaddr.ParsePrefix(text)
		if err != nil {
			report(field, err)
			continue
		}
		facts.podCIDRs = append(facts.podCIDRs, p)
	}
	return facts, problems
}

// appendAddresses appends the node's addresses of one type, each once.
func appendAddresses(to []netip.Addr, n *v1.Node, kind v1.NodeAddressType, report func(field string, err error)) []netip.Addr {
	for i, addr := range n.Status.Addresses {
		if addr.Type != kind {
			continue
		}
		a, err := ipaddr.Parse(addr.Address)
		if err != nil {
			report(fmt.Sprintf("status.addresses[%d].address", i), err)
			continue
		}
		if !slices.Contains(to, a) {
			to = append(to, a)
		}
	}
	return to
}

// resolveNode combines the options with the content of the Node object.
func resolveNode(o *TrackerOptions, facts nodeFacts) *Node {
	n := &Node{
		Name:         o.NodeName,
		Zone:         facts.zone,
		Addresses:    facts.addresses,
		LocalTraffic: o.LocalTraffic,
		ServiceCIDRs: tidyPrefixes(slices.Clone(o.ServiceCIDRs)),
	}
	if len(n.Addresses) == 0 {
		n.Addresses = o.NodeAddresses
	}
	if n.LocalTraffic.NodePodCIDRs {
		n.LocalTraffic.Sources = append(slices.Clone(n.LocalTraffic.Sources), facts.podCIDRs...)
	}
	n.LocalTraffic.Sources = tidyPrefixes(slices.Clone(n.LocalTraffic.Sources))
	n.NodePorts = o.NodePortAddresses.resolve(n.Addresses)
	return n
}

// primaryAddresses returns the first address of each family as prefix of full
// length. A node whose addresses are not known yet has none, and so no node
// ports until they are known.
func primaryAddresses(addrs []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addrs {
		taken := slices.ContainsFunc(out, func(p netip.Prefix) bool { return ipaddr.FamilyOf(p.Addr()) == ipaddr.FamilyOf(a) })
		if !taken && !a.IsLoopback() {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

// ParseNodePortAddresses parses the addresses of node ports as kube-proxy's configuration names
// them: prefixes in CIDR notation and the words "primary", "localhost" (127.0.0.0/8 and ::1/128)
// and "all", in any order, each word at most once. An empty list means the primary addresses. An
// error begins with the index of the entry, such as [0].
func ParseNodePortAddresses(list ...string) (NodePortAddresses, error) {
	var out NodePortAddresses
	for i, text := range list {
		if err := out.add(text, slices.Contains(list[:i], text)); err != nil {
			return NodePortAddresses{}, fmt.Errorf("[%d]: %w", i, err)
		}
	}
	out.Prefixes, out.Loopback = tidyPrefixes(out.Prefixes), tidyLoopback(out.Loopback)
	return out, nil
}

// tidyLoopback sorts ranges and drops those within others, except single addresses that these do
// not select.
func tidyLoopback(in []netip.Prefix) []netip.Prefix {
	ranges := tidyPrefixes(slices.Clone(in))
	selected := NodePortAddresses{Loopback: ranges}.LoopbackAddresses()
	for _, p := range in {
		if p.IsSingleIP() && !slices.Contains(selected, p.Addr()) {
			ranges = append(ranges, p)
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return slices.Compact(ranges)
}

// add adds an entry of the list.
func (a *NodePortAddresses) add(text string, isRepeated bool) error {
	switch text {
	case "primary":
		a.Primary = true
	case "all":
		a.All = true
	case "localhost":
		a.Loopback = append(a.Loopback, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
	default:
		p, err := ipaddr.ParsePrefix(text)
		switch {
		case err != nil:
			return fmt.Errorf("want primary, localhost, all or a CIDR: %w", err)
		case p.Addr().IsLoopback():
			a.Loopback = append(a.Loopback, p)
		default:
			a.Prefixes = append(a.Prefixes, p)
		}
		return nil
	}
	if isRepeated {
		return fmt.Errorf("the word %q is repeated", text)
	}
	return nil
}

// NodeEligible reports whether load balancers may send new connections to the node: they must
// not while its Node object is unknown, is being deleted, or has the taint
// ToBeDeletedByClusterAutoscaler. A tracker without NodeName returns true.
func (t *ServiceChangeTracker) NodeEligible() bool {
	return t.options.NodeName == "" || t.changeLog.eligible.Load()
}

func isEligible(n *v1.Node) bool {
	return n != nil && n.DeletionTimestamp.IsZero() && !slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool {
		return t.Key == "ToBeDeletedByClusterAutoscaler"
	})
}
