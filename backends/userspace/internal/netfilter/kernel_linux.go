package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// Abilities implements [backends.Target]. Connection tracking remembers which flows are redirected,
// and with TPROXY flows from bridges.
func (c *Capture) Abilities() backends.TargetAbilities[Key, Value] {
	return backends.TargetAbilities[Key, Value]{
		Abilities: proxy.Abilities{
			Operations: c.ops.Load, Drifted: c.Drifted, WaitDrift: c.WaitDrift, FoundFrontends: c.found.Take, CheckNode: c.checkNode,
		},
		Check: c.Check, Replace: c.Replace, Cleanup: c.Cleanup, Close: c.Close,
	}
}

func (c *Capture) table(fam nfnetlink.Family) nfnetlink.Table {
	return nfnetlink.Table{Family: fam, Name: c.Identity.Name}
}

// Replace is Replace of [backends.TargetAbilities].
func (c *Capture) Replace(ctx context.Context, _ proxy.Snapshot, must bool) backends.Replacement[Key, Value] {
	if !must || c.Begin() != nil {
		return nil // List fails in the same way, and returns the error
	}
	c.found.Take()
	for _, f := range ipaddr.Families() {
		l := lister{Capture: c, ctx: ctx, fam: nft.FamilyOf(f)}
		// The tables are removed, whatever cannot be read in them.
		_ = errors.Join(l.elements(setFrontends), l.elements(setNodePorts))
		l.find(f)
	}
	return &replacement{capture: c}
}

// replacement rebuilds the tables, in one transaction that begins by removing the old ones, or in
// several ones if the send buffer is too small for it: then no table serves for a moment.
type replacement struct {
	capture *Capture
	// begun says that the old tables have been removed.
	begun bool
}

// Pieces implements [backends.Replacement].
func (*replacement) Pieces() int { return 1 }

// Commit implements [backends.Replacement]. When the kernel is out of memory, it does not try a
// smaller commit: that would remove the tables, too, and leave packets with a part of the rules. A first
// commit that fails begins anew.
func (r *replacement) Commit(ctx context.Context, ops []op) backends.Outcome {
	done := 0
	err := r.capture.commit(ctx, ops, !r.begun, &done)
	if err != nil && !r.begun {
		done = 0
	}
	r.begun = r.begun || err == nil
	return nft.Replacing(backends.PartialOutcome(done, len(ops), err))
}

// Finish implements [backends.Replacement]. It removes the routing of families that are not
// served; their tables have been removed before.
func (r *replacement) Finish(ctx context.Context) error {
	all := ipaddr.Families()
	return r.capture.remove(ctx, slices.DeleteFunc(all[:], r.capture.serves)...)
}

// Commit implements [backends.Target]. Routing that it has added stays if the tables are refused.
func (c *Capture) Commit(ctx context.Context, ops []op) backends.Outcome {
	ordered, first, done := ops, 0, 0
	var indexes []int
	if removesTable := func(o op) bool { return o.Key.kind == kindTable && o.Kind == backends.Remove }; slices.ContainsFunc(ops, removesTable) {
		// No packet may be in the base chains when the elements of a table are removed.
		ordered, first, indexes = backends.Partition(ops, func(o *op) bool { return o.Key.level == levelBase && o.Kind == backends.Remove })
	}
	var err error
	if first > 0 {
		err = c.commit(ctx, ordered[:first], false, &done)
		c.Await()
	}
	if err == nil {
		err = c.commit(ctx, ordered[first:], false, &done)
	}
	return backends.PartialOutcome(done, len(ops), err).At(indexes)
}

// commit makes one transaction if that is possible, and adds the operations that are carried out to done.
// If rebuild is set, the transaction begins by removing the tables.
func (c *Capture) commit(ctx context.Context, ops []op, rebuild bool, done *int) error {
	w := writer{Capture: c}
	if err := w.write(ops, rebuild); err != nil {
		return err
	}
	if err := c.addRoutes(ops); err != nil {
		return nft.Explain(err)
	}
	err := c.Conn.Commit(ctx, &c.batch)
	var size *nfnetlink.SizeError
	if errors.As(err, &size) && len(ops) > 1 {
		// The batch is too large, for example in an unprivileged user namespace. The
		// order of the operations keeps every state between them consistent.
		half := len(ops) / 2
		if err := c.commit(ctx, ops[:half], rebuild, done); err != nil {
			return err
		}
		return c.commit(ctx, ops[half:], false, done)
	}
	if err != nil {
		return err
	}
	*done += len(ops)
	c.ops.Add(uint64(len(ops)))
	return c.removeRoutes(ops)
}

// addRoutes adds routing rules and routes. It adds nothing that exists: that a commit was refused before
// does not matter.
func (c *Capture) addRoutes(ops []op) error {
	for i := range ops {
		if ops[i].Key.kind == kindRouting && ops[i].Kind != backends.Remove {
			if err := c.routes.add(familyOf(ops[i].Key.fam)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Capture) removeRoutes(ops []op) error {
	for i := range ops {
		if ops[i].Key.kind == kindRouting && ops[i].Kind == backends.Remove {
			if err := c.routes.remove(familyOf(ops[i].Key.fam)); err != nil {
				return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
			}
		}
	}
	return nil
}

// Cleanup is Cleanup of [backends.TargetAbilities].
func (c *Capture) Cleanup(ctx context.Context) error {
	all := ipaddr.Families()
	return c.remove(ctx, all[:]...)
}

// remove removes everything of some IP families.
func (c *Capture) remove(ctx context.Context, families ...v1.IPFamily) error {
	var own []nfnetlink.Table
	for _, f := range families {
		tables, err := c.Tables(ctx, nft.FamilyOf(f), c.Identity.Name)
		if err != nil {
			return err
		}
		if len(tables) > 0 {
			own = append(own, c.table(nft.FamilyOf(f)))
		}
	}
	if err := c.RemoveTables(ctx, own...); err != nil {
		return err
	}
	c.ops.Add(uint64(len(own)))
	for _, f := range families {
		state, err := c.routes.state(f)
		if err == nil && state != routingAbsent {
			c.ops.Add(1)
			err = c.routes.remove(f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// exists reports whether the table of a family exists. A dormant one must be replaced.
func (c *Capture) exists(ctx context.Context, fam nfnetlink.Family) (bool, error) {
	tables, err := c.Tables(ctx, fam, c.Identity.Name)
	if slices.ContainsFunc(tables, nfnetlink.TableInfo.IsDormant) {
		err = nft.MustReplace("the dormant table " + c.Identity.Name)
	}
	return len(tables) > 0, err
}
