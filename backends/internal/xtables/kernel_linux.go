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

// List implements [backends.Target]: what exists is read by a [replacement].
func (k *kernel) List(context.Context) iter.Seq2[Object, error] {
	return func(func(Object, error) bool) {}
}

// ManyRemovals is the maximum number of rules that a change removes from a chain one by one,
// in the flavour that uses nf_tables. Each takes about 2 ms; for more rules, reading everything
// and writing the whole chain is faster. In the legacy flavour one by one is always faster.
const ManyRemovals = 128

// Commit implements [backends.Target]. It does not find out what became of a change that a program
// refused, nor why: an Apply from the zero snapshot does.
func (k *kernel) Commit(ctx context.Context, ops []Op) error {
	if k.programs.flavour == NFT && hasManyRemovals(ops) {
		return fmt.Errorf("%w: too many rules of a chain to remove one by one", backends.ErrReplace)
	}
	s, err := newScript(ops, k.piece())
	if err != nil {
		return err
	}
	return k.disturb(func() error {
		err := k.restore(ctx, s)
		if err == nil {
			k.counts.hold(ops, false)
		}
		if _, stopped := errors.AsType[*stopError](err); stopped && (s.commits > 1 || !errors.Is(err, backends.ErrUnavailable)) {
			return fmt.Errorf("%w: a change was refused: %w", proxy.ErrDataplaneLost, err)
		}
		return err
	})
}

func hasManyRemovals(ops []Op) bool {
	removals := map[chainRef]int{}
	for i := range ops {
		if k := &ops[i].Key; k.Rule != "" && ops[i].Kind == backends.Remove && !isHook(k.Chain) {
			ref := chainRef{k.Table, k.Chain}
			if removals[ref]++; removals[ref] > ManyRemovals {
				return true
			}
		}
	}
	return false
}

// disturb calls a commit as tests want it to be called.
func (k *kernel) disturb(commit func() error) error {
	if k.around == nil {
		return commit()
	}
	return k.around(commit)
}

// find reads the chains and rules of the identity. Before that, it repairs what iptables cannot use.
func (k *kernel) find(ctx context.Context) (*existing, error) {
	var known knowledge
	var chains saved
	if k.native != nil {
		var repairs uint64
		var err error
		if chains, known, repairs, err = k.native.repair(ctx); err != nil {
			return nil, fmt.Errorf("iptables: nf_tables: %w", err)
		}
		k.ops.Add(repairs)
	}
	known.isForeign = func(t Table, rule string) bool { return k.isForeign(k.names, t, rule) }
	e, err := k.programs.find(ctx, k.names, known)
	if k.native != nil && errors.Is(err, errIncompatible) {
		return &existing{chains: chains, isUnprintable: true, knowledge: known}, nil
	}
	return e, err
}

// Cleanup implements [backends.Cleaner].
func (k *kernel) Cleanup(ctx context.Context) error {
	e, err := k.find(ctx)
	if err != nil {
		return err
	}
	if err := k.removeJumps(ctx, e); err != nil {
		return err
	}
	p := e.adopt(k.names, nil, false)
	// Rules that reject ports of virtual IPs go first: without translation they would reject
	// packets to another backend that has taken over, and serves them after table filter.
	filter, others := partition(p.ops)
	for _, ops := range [][]Op{filter, others} {
		if err := k.write(ctx, ops); err != nil {
			return err
		}
	}
	removals, kept := p.removals()
	more, err := k.removeChains(ctx, removals)
	if err != nil {
		return err
	}
	k.counts.hold(nil, true)
	if kept = append(kept, more...); len(kept) > 0 {
		return fmt.Errorf("iptables: chains were emptied but cannot be removed, because rules of other programs jump to them: %v", kept)
	}
	return nil
}

// removeJumps removes jumps that iptables cannot find by their text.
func (k *kernel) removeJumps(ctx context.Context, e *existing) error {
	if !e.isUnprintable {
		return nil
	}
	if err := k.native.removeJumps(ctx, e.hooks); err != nil {
		return fmt.Errorf("%w: iptables: removing jumps that new ones have replaced: %w", proxy.ErrDataplaneLost, err)
	}
	return nil
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

// removeChains carries out removals of chains, and returns those that stay, with the reasons. Each table is a commit of
// its own, so that a refusal in one table leaves no chain of another one half done.
func (k *kernel) removeChains(ctx context.Context, ops []Op) (kept []string, err error) {
	for _, table := range []Table{Mangle, NAT, Filter} {
		in := slices.DeleteFunc(slices.Clone(ops), func(o Op) bool { return o.Key.Table != table })
		more, err := k.removeEach(ctx, in)
		if kept = append(kept, more...); err != nil {
			return kept, err
		}
	}
	return kept, nil
}

// removeEach carries out removals of chains of one table together. If they are refused, it halves them until it has
// found the chains that stay, and returns them with the reasons.
func (k *kernel) removeEach(ctx context.Context, ops []Op) (kept []string, err error) {
	err = k.write(ctx, ops)
	switch {
	case !isRefusal(err):
		return nil, err
	case len(ops) == 1:
		return []string{fmt.Sprintf("%s (%v)", ops[0].Key.Chain, err)}, nil
	}
	for _, half := range [][]Op{ops[:len(ops)/2], ops[len(ops)/2:]} {
		more, err := k.removeEach(ctx, half)
		if kept = append(kept, more...); err != nil {
			return kept, err
		}
	}
	return kept, nil
}

// write commits operations.
func (k *kernel) write(ctx context.Context, ops []Op) error {
	s, err := newScript(ops, k.piece())
	if err != nil {
		return err
	}
	return k.restore(ctx, s)
}

// piece is about how many bytes of new chains go into one commit; 0 is all.
func (k *kernel) piece() int {
	if k.programs.flavour == NFT {
		return pieceSize
	}
	return 0
}

// restore runs a script, unless it is empty, while the watch is told about it.
func (k *kernel) restore(ctx context.Context, s *script) error {
	if s.commits == 0 {
		return nil
	}
	err := k.watch.commit(ctx, s.commits, len(s.text), func() error { return k.programs.restore(ctx, s.text) })
	if err == nil {
		k.ops.Add(s.rules)
		k.counts.wrote(s)
	}
	return err
}
