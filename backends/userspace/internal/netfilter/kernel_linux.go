package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// kernel is the edge to nf_tables and to routing.
type kernel struct {
	renderer
	*nft.Conn

	routes routing
	events *rawnetlink.Listener
	batch  nfnetlink.Batch
	// found are the frontends of the last listing.
	found backends.Finds
	ops   atomic.Uint64
}

// Found implements [backends.Finder].
func (k *kernel) Found() []*proxy.ServicePort { return k.found.Take() }

// Operations implements [proxy.OperationCounter].
func (k *kernel) Operations() uint64 { return k.ops.Load() }

func (k *kernel) table(fam nfnetlink.Family) nfnetlink.Table {
	return nfnetlink.Table{Family: fam, Name: k.Identity.Name}
}

// Replace implements [backends.Replacer].
func (k *kernel) Replace(ctx context.Context, _ proxy.Snapshot, must bool) backends.Replacement[Key, Value] {
	if !must || k.Begin() != nil {
		return nil // List fails in the same way, and returns the error
	}
	k.found.Take()
	for _, f := range ipaddr.Families() {
		l := lister{kernel: k, ctx: ctx, fam: nft.FamilyOf(f)}
		// The tables are removed, whatever cannot be read in them.
		_ = errors.Join(l.elements(setFrontends), l.elements(setNodePorts))
		l.find(f)
	}
	return &replacement{kernel: k}
}

// replacement rebuilds the tables, in one transaction that begins by removing the old ones, or in
// several ones if the send buffer is too small for it: then no table serves for a moment.
type replacement struct {
	kernel *kernel
	// begun says that the old tables have been removed.
	begun bool
}

// Pieces implements [backends.Replacement].
func (*replacement) Pieces() int { return 1 }

// Commit implements [backends.Replacement]. When the kernel is out of memory, it does not try a
// smaller commit: that would remove the tables, too, and leave packets with a part of the rules.
func (r *replacement) Commit(ctx context.Context, ops []op) error {
	err := r.kernel.commit(ctx, ops, !r.begun)
	if errors.Is(err, backends.ErrExhausted) {
		return fmt.Errorf("%w: %w", backends.ErrUnavailable, err)
	}
	r.begun = r.begun || err == nil
	return err
}

// Finish implements [backends.Replacement]. It removes the routing of families that are not
// served; their tables have been removed before.
func (r *replacement) Finish(ctx context.Context) error {
	all := ipaddr.Families()
	return r.kernel.remove(ctx, slices.DeleteFunc(all[:], r.kernel.Serves)...)
}

// Commit implements [backends.Target].
func (k *kernel) Commit(ctx context.Context, ops []op) error {
	var bases, rest []op
	table := false
	for _, o := range ops {
		table = table || o.Key.kind == kindTable && o.Kind == backends.Remove
		if o.Key.level == levelBase && o.Kind == backends.Remove {
			bases = append(bases, o)
		} else {
			rest = append(rest, o)
		}
	}
	if !table || len(bases) == 0 {
		return k.commit(ctx, ops, false)
	}
	// No packet may be in the base chains when the elements of a table are removed.
	return backends.CommitBoth(ctx, func(ctx context.Context, ops []op) error {
		err := k.commit(ctx, ops, false)
		k.Await()
		return err
	}, bases, rest)
}

// commit makes one transaction if that is possible. If rebuild is set, the transaction begins by
// removing the tables.
func (k *kernel) commit(ctx context.Context, ops []op, rebuild bool) error {
	w := writer{kernel: k}
	if err := w.write(ops, rebuild); err != nil {
		return err
	}
	undo, err := k.addRoutes(ops)
	if err != nil {
		return errors.Join(nft.Explain(err), undo())
	}
	err = k.Conn.Commit(ctx, &k.batch)
	var size *nfnetlink.SizeError
	if errors.As(err, &size) && len(ops) > 1 {
		// The batch is too large, for example in an unprivileged user namespace. The
		// order of the operations keeps every state between them consistent.
		half := len(ops) / 2
		if !rebuild {
			return backends.CommitBoth(ctx, k.Commit, ops[:half], ops[half:])
		}
		// Old tables cannot be made again: the next commit of the replacement begins anew.
		if err = k.commit(ctx, ops[:half], true); err != nil {
			return errors.Join(err, undo())
		}
		if err = k.commit(ctx, ops[half:], false); err == nil {
			return nil
		}
	}
	if err != nil {
		return errors.Join(err, undo())
	}
	k.ops.Add(uint64(len(ops)))
	return k.removeRoutes(ops)
}

// addRoutes adds routing rules and routes; undo removes those that it has added. It must check
// which exist, since a replacement adds all of them.
func (k *kernel) addRoutes(ops []op) (undo func() error, err error) {
	var done []v1.IPFamily
	undo = func() (err error) {
		for _, f := range done {
			err = errors.Join(err, k.routes.remove(f))
		}
		return err
	}
	for i := range ops {
		if ops[i].Key.kind != kindRouting || ops[i].Kind == backends.Remove {
			continue
		}
		f := familyOf(ops[i].Key.fam)
		before, err := k.routes.state(f)
		if err != nil {
			return undo, err
		}
		if before == routingAbsent {
			done = append(done, f)
		}
		if err := k.routes.add(f); err != nil {
			return undo, err
		}
	}
	return undo, nil
}

func (k *kernel) removeRoutes(ops []op) error {
	for i := range ops {
		if ops[i].Key.kind == kindRouting && ops[i].Kind == backends.Remove {
			if err := k.routes.remove(familyOf(ops[i].Key.fam)); err != nil {
				return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
			}
		}
	}
	return nil
}

// Cleanup implements [backends.Cleaner].
func (k *kernel) Cleanup(ctx context.Context) error {
	all := ipaddr.Families()
	return k.remove(ctx, all[:]...)
}

// remove removes everything of some IP families.
func (k *kernel) remove(ctx context.Context, families ...v1.IPFamily) error {
	var own []nfnetlink.Table
	for _, f := range families {
		tables, err := k.Tables(ctx, nft.FamilyOf(f), k.Identity.Name)
		if err != nil {
			return err
		}
		if len(tables) > 0 {
			own = append(own, k.table(nft.FamilyOf(f)))
		}
	}
	if err := k.RemoveTables(ctx, own...); err != nil {
		return err
	}
	k.ops.Add(uint64(len(own)))
	for _, f := range families {
		state, err := k.routes.state(f)
		if err == nil && state != routingAbsent {
			k.ops.Add(1)
			err = k.routes.remove(f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// exists reports whether the table of a family exists. A dormant one must be replaced.
func (k *kernel) exists(ctx context.Context, fam nfnetlink.Family) (bool, error) {
	tables, err := k.Tables(ctx, fam, k.Identity.Name)
	if slices.ContainsFunc(tables, nfnetlink.TableInfo.IsDormant) {
		err = nft.MustReplace("the dormant table " + k.Identity.Name)
	}
	return len(tables) > 0, err
}
