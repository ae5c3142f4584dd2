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
	// piece is about how many bytes of new chains go into one commit; 0 is all.
	piece  int
	ops    atomic.Uint64
	counts counts
	// facts are what rules depend on, as Family.Facts has found it.
	facts any
	// missingExtensions are missing extensions of iptables that not all service ports need.
	missingExtensions []Extension
	// finds are the frontends of the last listing.
	finds backends.Finds
	// around is [Config.Around].
	around func(commit func() error) error
}

// Abilities implements [backends.Target].
func (k *kernel) Abilities() backends.TargetAbilities[Key, string] {
	return backends.TargetAbilities[Key, string]{
		Facts: func(proxy.Snapshot) any { return k.facts }, Check: k.Check, Replace: k.Replace, Cleanup: k.Cleanup,
	}
}

// List implements [backends.Target]: what exists is read by a [replacement].
func (k *kernel) List(context.Context) iter.Seq2[Object, error] {
	return func(func(Object, error) bool) {}
}

// Commit implements [backends.Target]. It does not find out what became of a change that a program
// refused, nor why: an Apply from the zero snapshot does.
func (k *kernel) Commit(ctx context.Context, ops []Op) backends.Outcome {
	if k.programs.flavour == NFT && hasManyRemovals(ops) {
		return backends.PartialOutcome(0, len(ops), fmt.Errorf("%w: too many rules of a chain to remove one by one", backends.ErrReplace))
	}
	s := newScript(ops, k.piece)
	err := k.restore(ctx, s)
	if err == nil {
		k.counts.hold(ops, false)
	}
	if _, stopped := errors.AsType[*stopError](err); stopped && (s.commits > 1 || !errors.Is(err, backends.ErrUnavailable)) {
		err = fmt.Errorf("%w: a change was refused: %w", proxy.ErrDataplaneLost, err)
	}
	return backends.PartialOutcome(0, len(ops), err)
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

// find reads the chains and rules of the identity.
func (k *kernel) find(ctx context.Context) (*existing, error) {
	e, err := k.programs.find(ctx, k.names)
	if errors.Is(err, errIncompatible) {
		return k.reread(ctx)
	}
	return e, err
}

// reread does the same after a program has refused what the listing suggests.
func (k *kernel) reread(ctx context.Context) (*existing, error) {
	if k.native == nil {
		return k.programs.find(ctx, k.names)
	}
	e, err := k.native.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("iptables: nf_tables: %w", err)
	}
	return e, nil
}

// Cleanup is Cleanup of [backends.TargetAbilities]. Rules that reject ports of virtual IPs go first: without
// translation they would reject packets to another backend that has taken over, and serves them after
// table filter.
func (k *kernel) Cleanup(ctx context.Context) error {
	e, err := k.find(ctx)
	if err != nil {
		return err
	}
	if err := k.native.removeJumps(ctx, e.handles); err != nil {
		return err
	}
	ops, unwanted := e.plan(k.names, nil, false)
	if err := k.write(ctx, ops); err != nil {
		return err
	}
	err = k.removeChains(ctx, e, unwanted)
	if err != nil && !isRefusal(err) {
		return err
	}
	k.counts.hold(nil, true)
	if err == nil && len(e.used) > 0 {
		var used []string
		for ref := range e.used {
			used = append(used, ref.name)
		}
		slices.Sort(used)
		err = fmt.Errorf("%v", used)
	}
	if err != nil {
		return fmt.Errorf("iptables: chains were emptied but cannot be removed, because rules of other programs jump to them: %w", err)
	}
	return nil
}

// removalTries limits how many programs try to remove chains of which the kernel refuses some.
const removalTries = 32

// removeChains removes empty chains to which no rule leads. Its error is a refusal if a chain stays.
func (k *kernel) removeChains(ctx context.Context, e *existing, chains []chainRef) error {
	var refused error
	for _, table := range []Table{Mangle, NAT, Filter} { // each table commits by itself
		var ops []Op
		for _, ref := range chains {
			if !e.used[ref] && ref.table == table {
				ops = append(ops, Op{Kind: backends.Remove, Key: ref.key()})
			}
		}
		tries := removalTries
		err := k.removeInHalves(ctx, ops, &tries)
		if err != nil && !isRefusal(err) {
			return err
		}
		refused = cmp.Or(refused, err)
	}
	return refused
}

// removeInHalves removes chains together, or if that is refused, in halves: a rule that the programs do not list
// may lead to one of them.
func (k *kernel) removeInHalves(ctx context.Context, ops []Op, tries *int) error {
	err := k.write(ctx, ops)
	if *tries--; !isRefusal(err) || len(ops) < 2 || *tries <= 0 {
		return err
	}
	half := len(ops) / 2
	first := k.removeInHalves(ctx, ops[:half], tries)
	if first != nil && !isRefusal(first) {
		return first
	}
	return cmp.Or(k.removeInHalves(ctx, ops[half:], tries), first)
}

// write commits operations.
func (k *kernel) write(ctx context.Context, ops []Op) error {
	return k.restore(ctx, newScript(ops, k.piece))
}

// restore runs a script, unless it is empty, while the watch pauses.
func (k *kernel) restore(ctx context.Context, s *script) error {
	if s.commits == 0 {
		return nil
	}
	ran := false
	err := k.watch.Pause(ctx, func() (int, error) {
		ran = true
		return s.commits, k.around(func() error { return k.programs.restore(ctx, s.text) })
	})
	switch {
	case err == nil:
		k.ops.Add(s.rules)
		k.counts.wrote(s)
	case !ran:
		err = fmt.Errorf("iptables: %w: %w", backends.ErrUnavailable, err)
	}
	return err
}
