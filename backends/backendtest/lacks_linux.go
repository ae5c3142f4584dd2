package backendtest

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/proxy"
)

func (b *testbed) isLacking(what Capability) bool { return b.lacks != nil && b.lacks(what) }

// refusals returns the allowed outcomes of a flight that must be refused; specified is the
// one of backends that have Refusals.
func (b *testbed) refusals(f flight, specified lab.Outcome) []string {
	if !b.isLacking(Refusals) && !f.to.Addr().IsLoopback() {
		if (f.protocol == v1.ProtocolTCP || f.protocol == v1.ProtocolSCTP) && specified == lab.Refused {
			specified = lab.Reset // An SCTP socket does not tell ICMP errors from other refusals.
		}
		return []string{lab.Reply{Outcome: specified}.String()}
	}
	all := []lab.Reply{
		{Outcome: lab.Refused}, {Outcome: lab.Reset}, {Outcome: lab.Silence},
		{Outcome: lab.Failed, Err: unix.EINVAL}, // the error of the node for an unreachable route
	}
	if f.protocol == lab.ICMP {
		all = append(all, lab.Reply{Outcome: lab.Answered}) // no server has seen it
	}
	return summary(all)
}

// passages returns the allowed outcomes of a packet without frontend.
func (b *testbed) passages(f flight, p proxy.Packet) []string {
	outcomes := []string{b.untouched(f, p)}
	isVirtual := slices.ContainsFunc(virtualRanges(), func(r netip.Prefix) bool { return r.Contains(f.to.Addr()) })
	if isVirtual && b.isLacking(OtherPorts) {
		outcomes = append(outcomes, b.refusals(f, lab.Refused)...)
	}
	return outcomes
}
