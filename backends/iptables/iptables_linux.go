package iptables

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/nodecheck"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/proxy"
)

// New returns a backend that programs the network namespace of the calling
// thread. It needs CAP_NET_ADMIN there, for the legacy flavour also CAP_NET_RAW, and
// CAP_SYS_ADMIN if threads of the process are in other namespaces. If privileges, programs
// or parts of the kernel are missing, [New] or the first Apply fails with
// [proxy.ErrUnsupported].
//
// If all families use nf_tables, the backend reports at little cost whether there were changes of
// other programs; otherwise it always reports that there may have been. It has open files and sockets
// until it is closed.
func New(options Options) (proxy.Backend, error) {
	return newBackend(options, nil)
}

// newBackend makes a backend. Tests pass all commits to around.
func newBackend(options Options, around func(commit func() error) error) (proxy.Backend, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	x, err := xtables.New(o.config(around))
	if err != nil {
		return nil, err
	}
	var own []kinds.Kind
	for _, f := range x.Flavours() {
		own = append(own, map[xtables.Flavour]kinds.Kind{xtables.NFT: kinds.IPTablesNFT, xtables.Legacy: kinds.IPTablesLegacy}[f])
	}
	b, err := kinds.Among(backend{x}, o.Identity, own...)
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	return b, nil
}

// backend checks settings of the node that translation needs.
type backend struct{ *xtables.Backend }

// Abilities implements [proxy.Backend].
func (b backend) Abilities() proxy.Abilities {
	a := b.Backend.Abilities()
	a.CheckNode = b.checkNode
	return a
}

func (b backend) checkNode(s proxy.Snapshot) []*proxy.Problem {
	own := b.Tables(xtables.Filter)
	found := slices.Concat(nodecheck.Translation(s), nodecheck.Firewalls(s, own...))
	if len(own) > 0 { // the flavour is not legacy
		found = append(found, nodecheck.LegacyFirewalls(s)...)
	}
	if b.LacksIPv6() && !s.IsZero() && nodecheck.HasServices(s, v1.IPv6Protocol) {
		p := &proxy.Problem{Kind: "Node", Field: "ipv6.disable", Reason: proxy.NodeSetting}
		p.Name = s.Node().Name
		p.Err = errors.New("the kernel started without IPv6: Services are not served in IPv6; remedy: start it without ipv6.disable=1, " +
			"or leave the family out of Options.Families")
		found = append(found, p)
	}
	return found
}
