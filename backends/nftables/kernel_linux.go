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
	// tables are the serving ones.
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

// Commit implements [backends.Target], for the serving tables.
func (k *kernel) Commit(ctx context.Context, ops []op) backends.Outcome {
	done, indexes, err := k.commitTo(ctx, k.tables, ops)
	return backends.PartialOutcome(done, len(ops), err).At(indexes)
}

// commitTo commits to tables, in several transactions where a single one could misroute
// packets or is too large. It returns how many operations it has carried out, and their order if that is
// not the one of ops. After the last one, no new client gets a removed endpoint, so that those that have
// affinity to one can be removed for good.
func (k *kernel) commitTo(ctx context.Context, t *tables, ops []op) (done int, indexes []int, err error) {
	s := sequence{ops: ops}
	ahead, awaits := stages(ops)
	first := 0
	if ahead != nil {
		s.ops, first, s.indexes = backends.Partition(ops, ahead)
	}
	for _, end := range [...]int{first, len(ops)} {
		if err = k.commitPart(ctx, t, &s, &done, end); err != nil {
			break
		}
		if awaits {
			k.Await()
		}
	}
	if err != nil {
		t.owed = append(t.owed, s.ops[:done]...)
		return done, s.indexes, err
	}
	if len(t.owed) > 0 {
		ops, t.owed = slices.Concat(t.owed, ops), nil
	}
	return done, s.indexes, k.forget(ctx, t, ops)
}

// commitPart commits the operations from done to end, in one transaction if it fits into the send buffer.
func (k *kernel) commitPart(ctx context.Context, t *tables, s *sequence, done *int, end int) error {
	err := k.commitOnce(ctx, t, s.ops[*done:end], done)
	if !isTooLarge(err) {
		return err
	}
	s.groupByFrontend(*done, end)
	return k.divide(ctx, t, s.ops[*done:end], done)
}

// divide commits operations in several transactions, as a small send buffer requires in an unprivileged user
// namespace. Each transaction has all operations of a frontend. Only a frontend that alone is too large is
// divided, in the order of its operations: meanwhile its old endpoints may be chosen by its new policy.
func (k *kernel) divide(ctx context.Context, t *tables, ops []op, done *int) error {
	if len(ops) < 2 {
		return k.commitOnce(ctx, t, ops, done)
	}
	half := middle(ops)
	for _, part := range [...][]op{ops[:half], ops[half:]} {
		err := k.commitOnce(ctx, t, part, done)
		if isTooLarge(err) && len(part) > 1 {
			err = k.divide(ctx, t, part, done)
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
func (k *kernel) commitOnce(ctx context.Context, t *tables, ops []op, done *int) error {
	if len(ops) == 0 {
		return nil
	}
	counts, room := t.grow(ops)
	if !room {
		return nft.MustReplace("a full set")
	}
	w := writer{kernel: k, tables: t}
	k.batch.Reset()
	if err := w.write(ops); err != nil {
		return err
	}
	if err := k.Conn.Commit(ctx, &k.batch); err != nil {
		return err
	}
	*done += len(ops)
	k.ops.Add(w.count)
	w.plan.apply(t.slots)
	t.recordFills(&counts)
	return nil
}
