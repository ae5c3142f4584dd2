package xtables

import (
	"context"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// Prepare makes the kernel's own chains, for which a consumer may have jumps, in the network
// namespace of the calling thread. They do not belong to the consumer, as iptables cannot
// remove them. Tests compare a namespace before and after a backend.
func Prepare(ctx context.Context, c Config) error {
	hooks := map[Table]string{
		NAT:    "*nat\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n",
		Filter: "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n",
		Mangle: "*mangle\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n",
	}
	var script []byte
	for _, t := range c.Names.tables() {
		script = append(script, hooks[t]...)
	}
	return c.each(ctx, func(_ *Family, p *programs) error { return p.restore(ctx, script) })
}

// Dump returns all chains and rules of a consumer in the network namespace of the calling
// thread, for tests. It sorts what has no meaningful order.
func Dump(ctx context.Context, c Config) (string, error) {
	var out []string
	err := c.each(ctx, func(f *Family, p *programs) error {
		e, err := p.find(ctx, c.Names)
		if err != nil {
			return err
		}
		maps.Copy(e.chains, e.jumps)
		for ref, rules := range e.chains {
			if c.Names.IsOpen(ref.name) {
				slices.Sort(rules)
			}
			out = append(out, string(f.Family)+" "+ref.table.String()+" "+ref.name+"\n"+Lines(rules))
		}
		return nil
	})
	slices.Sort(out)
	return strings.Join(out, "\n"), err
}

// each calls a function with the programs of each family.
func (c *Config) each(ctx context.Context, do func(*Family, *programs) error) error {
	at, err := netns.Current(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer at.Close() //nolint:errcheck // nothing was written
	for i := range c.Families {
		p, err := findPrograms(ctx, c, c.Families[i].Family, at)
		if err != nil {
			return err
		}
		if err := do(&c.Families[i], &p); err != nil {
			return err
		}
	}
	return nil
}
