package iptables

import (
	"context"
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
// The backend counts rules and chains that it has written or removed
// ([proxy.OperationCounter]), and waits for changes of other programs ([proxy.DriftChecker]). If
// all families use nf_tables, it reports at little cost whether there were any; otherwise it
// always reports that there may have been. It has open files and sockets until it is closed
// ([io.Closer]).
func New(options Options) (proxy.Backend, error) {
	return newBackend(options, nil)
}

// newBackend makes a backend. Tests pass all commits to around.
func newBackend(options Options, around func(commit func() error) error) (proxy.Backend, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	b, err := xtables.New(o.config(around))
	if err != nil {
		return nil, err
	}
	var own []kinds.Kind
	for _, f := range b.Flavours() {
		own = append(own, map[xtables.Flavour]kinds.Kind{xtables.NFT: kinds.IPTablesNFT, xtables.Legacy: kinds.IPTablesLegacy}[f])
	}
	instance, err := kinds.Open(o.Identity, own...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("iptables: %w", err), b.Close())
	}
	return &backend{b, instance}, nil
}

// backend adds to the engine what concerns the node: settings that translation needs, and
// backends of other kinds.
type backend struct {
	*xtables.Backend
	instance *kinds.Instance
}

// Apply implements [proxy.Backend].
func (b *backend) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	return b.instance.Succeed(ctx, old, b.Backend.Apply(ctx, old, new))
}

// Drifted implements [proxy.DriftChecker].
func (b *backend) Drifted(ctx context.Context) bool {
	return b.instance.Ended() || b.Backend.Drifted(ctx)
}

// CheckNode implements [backends.NodeChecker].
func (b *backend) CheckNode(s proxy.Snapshot) []*proxy.Problem {
	own := b.Tables(xtables.Filter)
	found := slices.Concat(nodecheck.Translation(s), nodecheck.Firewalls(s, own...), b.instance.CheckNode(s))
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

// Close implements [io.Closer].
func (b *backend) Close() error { return errors.Join(b.instance.Close(), b.Backend.Close()) }
