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
		problems = append(problems, &Problem{Kind: "Node", NamespacedName: types.NamespacedName{Name: n.Name}, Field: field, Err: err})
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
		NodePorts:    o.NodePortAddresses,
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
	if !n.NodePorts.All && len(n.NodePorts.Prefixes) == 0 {
		n.NodePorts.Prefixes = primaryAddresses(n.Addresses)
	}
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

// ParseNodePortAddresses parses the forms that are usual on command lines: the
// single word "primary" (an empty list means the same), the single word "all",
// or prefixes in CIDR notation.
func ParseNodePortAddresses(list ...string) (NodePortAddresses, error) {
	if len(list) == 1 {
		switch list[0] {
		case "primary":
			return NodePortAddresses{}, nil
		case "all":
			return NodePortAddresses{All: true}, nil
		}
	}
	var out NodePortAddresses
	for _, text := range list {
		p, err := ipaddr.ParsePrefix(text)
		if err != nil {
			return NodePortAddresses{}, fmt.Errorf("node-port addresses are %q, %q or prefixes: %w", "primary", "all", err)
		}
		out.Prefixes = append(out.Prefixes, p)
	}
	out.Prefixes = tidyPrefixes(out.Prefixes)
	return out, nil
}
