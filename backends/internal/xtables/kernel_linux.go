package xtables

import (
	"cmp"
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
	counts counts
	// facts are what rules depend on, as Family.Facts has found it.
	facts any
	// missingExtensions are missing extensions of iptables that not all service ports need.
	missingExtensions []Extension
	// finds are the frontends of the last listing.
	finds backends.Finds
	// around may be nil, see [Config.Around].
	around func(commit func() error) error
}

// List implements [backends.Target]: what exists is read by a [replacement].
func (k *kernel) List(context.Context) iter.Seq2[Object, error] {
	return func(func(Object, error) bool) {}
}

// Commit implements [backends.Target]. It does not find out what became of a change that a program
// refused, nor why: an Apply from the zero snapshot does.
func (k *kernel) Commit(ctx context.Context, ops []Op) backends.Outcome {
	return backends.Stopped(0, len(ops), k.commit(ctx, ops))
}

func (k *kernel) commit(ctx context.Context, ops []Op) error {
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

// find reads the chains and rules of the identity.
func (k *kernel) find(ctx context.Context) (*existing, error) {
	if k.native == nil {
		return k.programs.find(ctx, k.names, knowledge{})
	}
	chains, known, woken, err := k.native.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("iptables: nf_tables: %w", err)
	}
	k.ops.Add(woken)
	e, err := k.programs.find(ctx, k.names, known)
	if errors.Is(err, errIncompatible) {
		return &existing{chains: chains, isUnprintable: true, knowledge: known}, nil
	}
	return e, err
}

// Cleanup implements [backends.Cleaner]. Rules that reject ports of virtual IPs go first: without
// translation they would reject packets to another backend that has taken over, and serves them after
// table filter. Rewriting has this order.
func (k *kernel) Cleanup(ctx context.Context) error {
	e, err := k.find(ctx)
	if err != nil {
		return err
	}
	if err := k.removeJumps(ctx, e); err != nil {
		return err
	}
	ops, unwanted := e.plan(k.names, nil, rewriting)
	if err := k.write(ctx, ops); err != nil {
		return err
	}
	kept, err := k.removeChains(ctx, slices.SortedFunc(slices.Values(unwanted), byTable))
	if err != nil {
		return err
	}
	k.counts.hold(nil, true)
	if len(kept) > 0 {
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

// byTable orders chains for removeChains.
func byTable(a, b chainRef) int { return cmp.Compare(b.table, a.table) }

// removeChains removes chains, ordered by table, and returns those that stay, with the reasons. Each table is a
// commit of its own, so that a refusal in one table leaves no chain of another one half done. If one is
// refused, removeChains halves it until it has found the chains that stay.
func (k *kernel) removeChains(ctx context.Context, chains []chainRef) (kept []string, err error) {
	at := slices.IndexFunc(chains, func(c chainRef) bool { return c.table != chains[0].table })
	if at < 0 {
		var ops []Op
		for _, c := range chains {
			ops = append(ops, Op{Kind: backends.Remove, Key: c.key()})
		}
		err = k.write(ctx, ops)
		switch at = len(chains) / 2; {
		case !isRefusal(err):
			return nil, err
		case at == 0:
			return []string{fmt.Sprintf("%s (%v)", chains[0].name, err)}, nil
		}
	}
	kept, err = k.removeChains(ctx, chains[:at])
	if err != nil {
		return kept, err
	}
	more, err := k.removeChains(ctx, chains[at:])
	return append(kept, more...), err
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
	err := k.watch.commit(ctx, s.commits, func() error { return k.programs.restore(ctx, s.text) })
	if err == nil {
		k.ops.Add(s.rules)
		k.counts.wrote(s)
	}
	return err
}
