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

// Abilities implements [backends.Target]. Close also closes the sockets of the Config. Connection tracking
// remembers which flows are redirected, and with TPROXY flows from bridges.
func (k *kernel) Abilities() backends.Abilities[Key, Value] {
	return backends.Abilities[Key, Value]{
		Abilities: proxy.Abilities{
			Operations: k.ops.Load, Drifted: k.Drifted, WaitDrift: k.WaitDrift, Flows: k.found.Take, CheckNode: k.checkNode,
		},
		Check: k.Check, Replace: k.Replace, Cleanup: k.Cleanup,
		Close: func() error { return errors.Join(k.Close(), k.Sockets.Close()) },
	}
}

func (k *kernel) table(fam nfnetlink.Family) nfnetlink.Table {
	return nfnetlink.Table{Family: fam, Name: k.Identity.Name}
}

// Replace is Replace of [backends.Abilities].
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
// smaller commit: that would remove the tables, too, and leave packets with a part of the rules. A first
// commit that fails begins anew.
func (r *replacement) Commit(ctx context.Context, ops []op) backends.Outcome {
	done := 0
	err := r.kernel.commit(ctx, ops, !r.begun, &done)
	if err != nil && !r.begun {
		done = 0
	}
	r.begun = r.begun || err == nil
	return nft.Replacing(done, len(ops), err)
}

// Finish implements [backends.Replacement]. It removes the routing of families that are not
// served; their tables have been removed before.
func (r *replacement) Finish(ctx context.Context) error {
	all := ipaddr.Families()
	return r.kernel.remove(ctx, slices.DeleteFunc(all[:], r.kernel.Serves)...)
}

// Commit implements [backends.Target]. Routing that it has added stays if the tables are refused.
func (k *kernel) Commit(ctx context.Context, ops []op) backends.Outcome {
	ordered, first, done := ops, 0, 0
	var indexes []int
	if removesTable := func(o op) bool { return o.Key.kind == kindTable && o.Kind == backends.Remove }; slices.ContainsFunc(ops, removesTable) {
		// No packet may be in the base chains when the elements of a table are removed.
		ordered, first, indexes = backends.Apart(ops, func(o *op) bool { return o.Key.level == levelBase && o.Kind == backends.Remove })
	}
	var err error
	if first > 0 {
		err = k.commit(ctx, ordered[:first], false, &done)
		k.Await()
	}
	if err == nil {
		err = k.commit(ctx, ordered[first:], false, &done)
	}
	return backends.Stopped(done, len(ops), err).At(indexes)
}

// commit makes one transaction if that is possible, and adds the operations that are carried out to done.
// If rebuild is set, the transaction begins by removing the tables.
func (k *kernel) commit(ctx context.Context, ops []op, rebuild bool, done *int) error {
	w := writer{kernel: k}
	if err := w.write(ops, rebuild); err != nil {
		return err
	}
	if err := k.addRoutes(ops); err != nil {
		return nft.Explain(err)
	}
	err := k.Conn.Commit(ctx, &k.batch)
	var size *nfnetlink.SizeError
	if errors.As(err, &size) && len(ops) > 1 {
		// The batch is too large, for example in an unprivileged user namespace. The
		// order of the operations keeps every state between them consistent.
		half := len(ops) / 2
		if err := k.commit(ctx, ops[:half], rebuild, done); err != nil {
			return err
		}
		return k.commit(ctx, ops[half:], false, done)
	}
	if err != nil {
		return err
	}
	*done += len(ops)
	k.ops.Add(uint64(len(ops)))
	return k.removeRoutes(ops)
}

// addRoutes adds routing rules and routes. It adds nothing that exists: that a commit was refused before
// does not matter.
func (k *kernel) addRoutes(ops []op) error {
	for i := range ops {
		if ops[i].Key.kind == kindRouting && ops[i].Kind != backends.Remove {
			if err := k.routes.add(familyOf(ops[i].Key.fam)); err != nil {
				return err
			}
		}
	}
	return nil
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

// Cleanup is Cleanup of [backends.Abilities].
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
