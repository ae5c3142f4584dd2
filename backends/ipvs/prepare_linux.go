package ipvs

import (
	"context"
	"errors"

	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/proxy"
)

// PrepareNode does what the first Apply of the backend of these options does before it writes rules:
// it makes the device and the sets, and writes the kernel's settings. It is for agents that run
// with a read-only /proc/sys, as in a container: a process with more privileges calls PrepareNode
// before the agent starts. Cleanup of any process restores the settings. If the node lacks a part
// of IPVS, PrepareNode fails with [proxy.ErrUnsupported].
func PrepareNode(ctx context.Context, o Options) (err error) {
	b, err := newBackend(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	return b.prepare(ctx)
}

// checkNode fails with [proxy.ErrUnsupported] if the first Apply would, and changes nothing that
// affects packets.
func (b *backend) checkNode(ctx context.Context) error {
	if err := b.makeObjects(ctx); err != nil {
		return err
	}
	c := b.ruleset()
	c.Names.Chains = map[xtables.Table][]string{xtables.NAT: nil, xtables.Filter: nil, xtables.Mangle: nil} // only the canary
	for i := range c.Families {
		all := c.Families[i].Extensions
		c.Families[i].Render = func(_ *proxy.Node, port *proxy.ServicePort, out []xtables.Object) []xtables.Object {
			if port != nil {
				return out
			}
			for t := range c.Names.Chains {
				out = append(out, xtables.Object{Key: xtables.Key{Table: t, Chain: c.Names.Canary()}, Value: usesOf(all, t)})
			}
			return out
		}
	}
	rules, err := xtables.New(c)
	if err != nil {
		return err
	}
	err = rules.Apply(ctx, proxy.Snapshot{}, proxy.NewSnapshot(&proxy.Node{}))
	return errors.Join(err, rules.Cleanup(ctx), rules.Close())
}

// usesOf returns a chain that uses all extensions of a table.
func usesOf(all []xtables.Extension, t xtables.Table) string {
	var rules []string
	for i := range all {
		if all[i].Table == t {
			rules = append(rules, all[i].Rule)
		}
	}
	return xtables.Lines(rules)
}
