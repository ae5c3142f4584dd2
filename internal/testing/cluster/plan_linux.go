package cluster

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/internal/testing/lab"
)

// Plan returns how a host is built in a lab, without its servers. If it is crowded, hosts have
// the addresses of their crowds, too. A cluster without a family has hosts without its addresses.
func Plan(h Host, crowded bool) lab.Host {
	p := lab.Host{Name: string(h.Name), Uplink: string(h.Uplink), Link: h.Link}
	hasFamily := func(of netip.Addr) bool {
		return slices.ContainsFunc(h.Addrs, func(a netip.Addr) bool { return a.Is4() == of.Is4() })
	}
	var own, all, behind, owned []netip.Prefix
	for _, a := range h.Addrs {
		own, all = append(own, Single(a)), append(all, Everything(a))
	}
	if crowded {
		owned = h.Crowd
	}
	if h.Uplink == Node && !IsPod(h.Name) {
		p.Gateway = Texts([]netip.Prefix{Single(Hosts()[0].Addrs[0]), Single(Hosts()[0].Addrs[1])})
	}
	if h.Name == Gateway {
		behind = all
		owned = slices.DeleteFunc(VirtualRanges(), func(r netip.Prefix) bool { return !hasFamily(r.Addr()) })
	}
	if h.Name == RemoteNode {
		behind = slices.DeleteFunc(RemotePods(crowded), func(r netip.Prefix) bool { return !hasFamily(r.Addr()) })
	}
	p.Addrs, p.Behind, p.Owned = Texts(own), Texts(behind), Texts(owned)
	return p
}

// RemotePods returns the addresses of the pods of the other node, and their crowds.
func RemotePods(crowded bool) (all []netip.Prefix) {
	for _, h := range Hosts() {
		if h.Uplink != RemoteNode {
			continue
		}
		for _, a := range h.Addrs {
			all = append(all, Single(a))
		}
		if crowded {
			all = append(all, h.Crowd...)
		}
	}
	return all
}

// Texts returns prefixes as a field of [lab.Host] has them.
func Texts(all []netip.Prefix) string {
	var words []string
	for _, p := range all {
		words = append(words, p.String())
	}
	return strings.Join(words, " ")
}
