package xtables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// kernel is the [backends.Target] for the tables of one family.
type kernel struct {
	Family
	names    Names
	programs programs
	// native is nil for the legacy flavour.
	native *native
	watch  watcher
	ops    atomic.Uint64
	counts *counts
	// missingExtensions are missing extensions of iptables that not all service ports need.
	missingExtensions []Extension
	// finds are the frontends of the last listing.
	finds backends.Finds
	// around may be nil, see [Config.Around].
	around func(commit func() error) error
}

// Operations implements [proxy.OperationCounter]: rules and chains that were
// written or removed.
func (k *kernel) Operations() uint64 { return k.ops.Load() }

// List implements [backends.Target].
func (k *kernel) List(ctx context.Context) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		s, err := k.find(ctx)
		if err != nil {
			yield(Object{}, err)
			return
		}
		k.findFrontends(s.found)
		for _, o := range s.found.objects(k.names) {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// Commit implements [backends.Target].
func (k *kernel) Commit(ctx context.Context, ops []Op) error {
	return k.disturb(func() error { return k.diagnose(ctx, k.commit(ctx, ops), false) })
}

// disturb calls a commit as tests want it to be called.
func (k *kernel) disturb(commit func() error) error {
	if k.around == nil {
		return commit()
	}
	return k.around(commit)
}

func (k *kernel) commit(ctx context.Context, ops []Op) error {
	_, err := k.write(ctx, k.rewrite(ctx, ops))
	if err == nil {
		k.counts.hold(ops, false)
	}
	return err
}

// rewrite merges operations that remove many rules from a chain. If the rules cannot be
// read, it returns the operations unchanged, which only takes longer.
func (k *kernel) rewrite(ctx context.Context, ops []Op) []Op {
	chains := manyRemoved(ops)
	if len(chains) == 0 || k.programs.flavour != NFT {
		return ops
	}
	s, err := k.find(ctx)
	if err != nil || s.unreadable {
		return ops
	}
	return rewrite(ops, chains, s.found)
}

// removeJumps removes jumps that iptables cannot find by their text.
func (k *kernel) removeJumps(ctx context.Context, of *ruleset) error {
	if err := k.native.removeJumps(ctx, of); err != nil {
		return fmt.Errorf("%w: iptables: removing jumps that new ones have replaced: %w", proxy.ErrDataplaneLost, err)
	}
	return nil
}

// Cleanup implements [backends.Cleaner].
func (k *kernel) Cleanup(ctx context.Context) error {
	s, err := k.find(ctx)
	if err != nil {
		return err
	}
	if s.unreadable {
		if err := k.removeJumps(ctx, &s.ruleset); err != nil {
			return err
		}
	}
	// Rules that reject ports of virtual IPs go first: without translation they would reject
	// packets to another backend that has taken over, and serves them after table filter.
	filter, others := partition(s.found.removal(k.names, s.unreachable))
	kept, err := k.write(ctx, filter)
	if err == nil {
		var more []string
		more, err = k.write(ctx, others)
		kept = append(kept, more...)
	}
	if err == nil {
		k.counts.hold(nil, true)
	}
	if err == nil && len(kept) > 0 {
		return fmt.Errorf("iptables: chains were emptied but cannot be removed, because rules of other programs jump to them: %v", kept)
	}
	return err
}

// partition returns the operations on table filter, and the others.
func partition(ops []Op) (filter, others []Op) {
	for i := range ops {
		if ops[i].Key.Table == Filter {
			filter = append(filter, ops[i])
		} else {
			others = append(others, ops[i])
		}
	}
	return filter, others
}

// write commits operations, all or none. It returns the chains that it emptied but had to
// keep, because rules of other programs jump to them.
func (k *kernel) write(ctx context.Context, ops []Op) (kept []string, err error) {
	s, err := newScript(ops, k.piece())
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	if len(s.sections) == 0 {
		return nil, nil
	}
	whole := s
	err = k.restore(ctx, s)
	for _, all := range [...]bool{false, true} {
		rest, inUse := s.withoutRemovals(err, all)
		if len(inUse) == 0 {
			break
		}
		kept = append(kept, inUse...)
		if s, err = newScript(rest, k.piece()); err == nil && len(s.sections) > 0 {
			err = k.restore(ctx, s)
		}
	}
	switch {
	case err == nil:
		k.counts.wrote(s)
		return kept, nil
	case s != whole:
		return nil, fmt.Errorf("%w: change partly applied: %w", proxy.ErrDataplaneLost, err)
	}
	return nil, k.undo(ctx, s, err)
}

// piece is about how many bytes of new chains go into one commit; 0 is all.
func (k *kernel) piece() int {
	if k.programs.flavour == NFT {
		return pieceSize
	}
	return 0
}

// restore runs a script.
func (k *kernel) restore(ctx context.Context, s *script) error {
	err := k.run(ctx, s)
	if err == nil {
		k.ops.Add(s.rules)
	}
	if stop, ok := errors.AsType[*stopError](err); ok {
		stop.markConflict(s, k.names)
		if k.programs.flavour == Legacy {
			stop.markExhausted(s)
		}
	}
	return err
}

// run runs a script while the watch is told about it.
func (k *kernel) run(ctx context.Context, s *script) error {
	return k.watch.commit(ctx, len(s.sections), len(s.text), func() error { return k.programs.restore(ctx, s.text) })
}

// undo reverts what was committed before an error. Most often that is nothing, because few
// scripts change two tables.
func (k *kernel) undo(ctx context.Context, s *script, cause error) error {
	if errors.Is(cause, proxy.ErrDataplaneLost) || errors.Is(cause, ErrLocked) && !k.begun(ctx, s, cause) {
		return cause // the next Apply is a full one, or nothing was written
	}
	var stop *stopError
	line := 1
	if errors.As(cause, &stop) && stop.line > 0 {
		line = stop.line
	} else if len(s.sections) > 1 {
		return fmt.Errorf("%w: change may be partly applied, as the program did not name the line at which it stopped: %w", proxy.ErrDataplaneLost, cause)
	}
	done := s.committed(line)
	if len(done) == 0 {
		return cause
	}
	back := make([]Op, 0, len(done))
	for _, o := range done {
		if o.Kind != backends.Add {
			return fmt.Errorf("%w: change partly applied: %w", proxy.ErrDataplaneLost, cause)
		}
		o.Kind = backends.Remove
		back = append(back, o)
	}
	inverse, err := newScript(back, k.piece())
	if err == nil {
		err = k.run(context.WithoutCancel(ctx), inverse)
	}
	if err != nil {
		return fmt.Errorf("%w: change partly applied and cannot be undone (%w): %w", proxy.ErrDataplaneLost, err, cause)
	}
	return cause
}

// begun reports whether a script may have committed a table before its program failed to
// get the xtables lock: iptables acquires the lock for each table, and releases it in between.
func (k *kernel) begun(ctx context.Context, s *script, cause error) bool {
	if _, ran := errors.AsType[*stopError](cause); !ran || len(s.sections) < 2 {
		return false
	}
	now, err := k.find(ctx)
	return err != nil || now.unreadable || slices.ContainsFunc(s.sections[0].ops, now.found.reflects)
}
