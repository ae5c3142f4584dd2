package nftables

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/nodecheck"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// listLimit is the largest number of elements with which a new process lists existing tables,
// to adopt them. The time for a listing grows with the square of their number; above the limit,
// writing new tables is faster.
const listLimit = 300_000

// kernel is the edge to nf_tables.
type kernel struct {
	*renderer
	*nft.Conn
	limits limits
	batch  nfnetlink.Batch
	// tables are what is known of the tables that are written: the serving ones, or new ones that replace them.
	tables *tables
	// wanted counts the elements that sets need when they are created.
	wanted perSet[int]
	// verified is true if this process has listed all tables once, or made them.
	verified bool
	// found are the frontends of the tables at the start of the last full Apply.
	found backends.Finds
	ops   atomic.Uint64
}

// limits are thresholds of the backend.
type limits struct {
	// list is the largest number of elements with which a new process lists existing
	// tables; set is the least size of a set, in elements.
	list, set int
}

// Abilities implements [backends.Target]. Operations are elements, rules, chains, sets and tables that
// were written or removed.
func (k *kernel) Abilities() backends.TargetAbilities[key, value] {
	return backends.TargetAbilities[key, value]{
		Abilities: proxy.Abilities{
			Operations: k.ops.Load, Drifted: k.Drifted, WaitDrift: k.WaitDrift, FoundFrontends: k.found.Take, CheckNode: checkNode,
		},
		Check: check, RenderDiff: k.RenderDiff, Replace: k.Replace, Cleanup: k.Cleanup, Close: k.Close,
	}
}

func checkNode(s proxy.Snapshot) []*proxy.Problem {
	return slices.Concat(nodecheck.Translation(s), nodecheck.Firewalls(s), nodecheck.LegacyFirewalls(s))
}

// Commit implements [backends.Target]. It makes several transactions where a single one could misroute
// packets or is too large. After the last one, no new client gets a removed endpoint, so that those that have
// affinity to one can be removed for good.
func (k *kernel) Commit(ctx context.Context, ops []op) backends.Outcome {
	s := sequence{ops: ops}
	ahead, awaits := stages(ops)
	first, done := 0, 0
	if ahead != nil {
		s.ops, first, s.indexes = backends.Partition(ops, ahead)
	}
	var err error
	for _, end := range [...]int{first, len(ops)} {
		if err = k.commitOnce(ctx, s.ops[done:end], &done); isTooLarge(err) {
			s.groupByFrontend(done, end)
			err = k.divide(ctx, s.ops[done:end], &done)
		}
		if err != nil {
			break
		}
		if awaits {
			k.Await()
		}
	}
	k.tables.affinity.note(s.ops[:done], err == nil)
	if err == nil {
		err = k.purge(ctx)
	}
	return backends.PartialOutcome(done, len(ops), err).At(s.indexes)
}

// divide commits operations in several transactions, as a small send buffer requires in an unprivileged user
// namespace. Each transaction has all operations of a frontend. Only a frontend that alone is too large is
// divided, in the order of its operations: meanwhile its old endpoints may be chosen by its new policy.
func (k *kernel) divide(ctx context.Context, ops []op, done *int) error {
	if len(ops) < 2 {
		return k.commitOnce(ctx, ops, done)
	}
	half := middle(ops)
	for _, part := range [...][]op{ops[:half], ops[half:]} {
		err := k.commitOnce(ctx, part, done)
		if isTooLarge(err) && len(part) > 1 {
			err = k.divide(ctx, part, done)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isTooLarge(err error) bool {
	_, ok := errors.AsType[*nfnetlink.SizeError](err)
	return ok
}

// commitOnce commits one transaction, and adds the operations that are carried out to done.
func (k *kernel) commitOnce(ctx context.Context, ops []op, done *int) error {
	if len(ops) == 0 {
		return nil
	}
	counts, room := k.tables.grow(ops)
	if !room {
		return nft.MustReplace("a full set")
	}
	w := writer{kernel: k}
	k.batch.Reset()
	if err := w.write(ops); err != nil {
		return err
	}
	if err := k.Conn.Commit(ctx, &k.batch); err != nil {
		return err
	}
	*done += len(ops)
	k.ops.Add(w.count)
	w.plan.apply(k.tables.slots)
	k.tables.recordFills(&counts)
	return nil
}
