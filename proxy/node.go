package proxy

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

// Node is what a service proxy needs to know about the node that it runs on. A
// published Node, and everything it refers to, is immutable.
type Node struct {
	// Name is the node's name; Zone its topology zone, empty when not known.
	Name, Zone string
	// Addresses are the node's own, the internal ones first. The first of a
	// family is the primary one of that family.
	Addresses []netip.Addr
	// NodePorts are the addresses that node ports answer at. In a Node of a tracker
	// the choice is resolved: without All and without Prefixes there are none.
	NodePorts NodePortAddresses
	// LocalTraffic distinguishes traffic from pods.
	LocalTraffic LocalTraffic
	// ServiceCIDRs are the ranges that ClusterIPs are allocated from. If they are
	// known, packets to an address of theirs that no Service has are dropped.
	ServiceCIDRs []netip.Prefix
}

// Equal reports whether n and o have equal content; a nil Node equals only nil.
func (n *Node) Equal(o *Node) bool {
	if n == o {
		return true
	}
	if n == nil || o == nil {
		return false
	}
	return n.Name == o.Name && n.Zone == o.Zone &&
		slices.Equal(n.Addresses, o.Addresses) &&
		n.NodePorts.Equal(o.NodePorts) &&
		n.LocalTraffic.Equal(o.LocalTraffic) &&
		slices.Equal(n.ServiceCIDRs, o.ServiceCIDRs)
}

// NodePortAddresses chooses the addresses of the node that node ports answer
// at: those that any of the fields selects. The zero value means the primary
// addresses.
type NodePortAddresses struct {
	// All selects every address of the node, but no loopback address.
	All bool
	// Primary selects the primary address of each family. In a [Node] of a
	// tracker, it is false, and Prefixes has the addresses.
	Primary bool
	// Prefixes selects the node's addresses within them, but no loopback address.
	Prefixes []netip.Prefix
	// Loopback has the ranges of loopback addresses that were named explicitly; they select
	// [NodePortAddresses.LoopbackAddresses]. A backend of package userspace with the capture
	// Loopback serves node ports there, beside the backend that serves everything else.
	Loopback []netip.Prefix
}

// Equal reports whether a and o have equal content.
func (a NodePortAddresses) Equal(o NodePortAddresses) bool {
	return a.All == o.All && a.Primary == o.Primary && slices.Equal(a.Prefixes, o.Prefixes) && slices.Equal(a.Loopback, o.Loopback)
}

// resolve returns the choice for a node with some addresses.
func (a NodePortAddresses) resolve(addrs []netip.Addr) NodePortAddresses {
	if a.selectsPrimary() {
		a.Prefixes = tidyPrefixes(append(slices.Clone(a.Prefixes), primaryAddresses(addrs)...))
	}
	a.Primary = false
	return a
}

// selectsPrimary reports whether the choice includes the primary addresses by that word.
func (a NodePortAddresses) selectsPrimary() bool { return a.Primary || a.Equal(NodePortAddresses{}) }

// LoopbackAddresses returns the loopback addresses at which node ports answer: 127.0.0.1 and ::1
// if a range of Loopback contains them, and the address of each range that has no other. They
// are sorted. Only processes of the node can reach them.
func (a NodePortAddresses) LoopbackAddresses() (all []netip.Addr) {
	for _, p := range a.Loopback {
		for _, usual := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
			if p.Contains(usual) {
				all = append(all, usual)
			}
		}
		if p.IsSingleIP() && p.Addr().IsLoopback() {
			all = append(all, p.Addr())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// Contains reports whether node ports answer at an address of the node that is no loopback
// address. It is not meaningful for the zero value, which no [Node] of a tracker has.
func (a NodePortAddresses) Contains(addr netip.Addr) bool {
	return !addr.IsLoopback() && (a.All || slices.ContainsFunc(a.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }))
}

// LocalTraffic distinguishes traffic from pods. Any match counts. Without any
// criterion for a family no traffic of that family counts as traffic from pods.
type LocalTraffic struct {
	// Sources are ranges of pod addresses: the cluster's or the node's.
	Sources []netip.Prefix
	// NodePodCIDRs adds the pod ranges that the Node object has at the time. In a
	// Node of a tracker they have been added to Sources.
	NodePodCIDRs bool
	// Interface is the name of the bridge that pods are attached to.
	Interface string
	// InterfacePrefix is what the names of the pods' interfaces begin with.
	InterfacePrefix string
}

// Equal reports whether t and o have equal content.
func (t LocalTraffic) Equal(o LocalTraffic) bool {
	return t.NodePodCIDRs == o.NodePodCIDRs && t.Interface == o.Interface &&
		t.InterfacePrefix == o.InterfacePrefix && slices.Equal(t.Sources, o.Sources)
}

// Detects reports whether there is any criterion for a family.
func (t LocalTraffic) Detects(family v1.IPFamily) bool {
	return t.Interface != "" || t.InterfacePrefix != "" ||
		slices.ContainsFunc(t.Sources, func(p netip.Prefix) bool { return ipaddr.FamilyOf(p.Addr()) == family })
}

// Match reports whether a packet with this source, received on this interface
// (empty: sent by the node), is from a pod.
func (t LocalTraffic) Match(source netip.Addr, iface string) bool {
	if iface != "" && (iface == t.Interface || t.InterfacePrefix != "" && strings.HasPrefix(iface, t.InterfacePrefix)) {
		return true
	}
	return slices.ContainsFunc(t.Sources, func(p netip.Prefix) bool { return p.Contains(source) })
}
