package backendtest

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/proxy"
)

func (b *testbed) isLacking(what Capability) bool { return b.lacks != nil && b.lacks(what) }

// refusals gives the fates of a flight that must not get through, of which one is
// as specified.
func (b *testbed) refusals(f flight, specified outcome) []string {
	if !b.isLacking(Refusals) {
		return []string{reply{outcome: specified}.String()}
	}
	all := []reply{
		{outcome: refused}, {outcome: reset}, {outcome: silence},
		{outcome: failed, err: unix.EINVAL}, // what the node says of a route that leads nowhere
	}
	if f.protocol == icmp {
		all = append(all, reply{outcome: answered}) // no server has seen it
	}
	return summary(all)
}

// passages gives the fates of a flight that is nobody's business.
func (b *testbed) passages(f flight, p proxy.Packet) []string {
	fates := []string{b.untouched(f, p)}
	isVirtual := slices.ContainsFunc(virtualRanges(), func(r netip.Prefix) bool { return r.Contains(f.to.Addr()) })
	if isVirtual && b.isLacking(OtherPorts) {
		fates = append(fates, b.refusals(f, refused)...)
	}
	return fates
}
