package iptables

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

// kernel is the edge: the tables of one family.
type kernel struct {
	renderer *renderer
	programs programs
	// native is nil but for the flavour nft.
	native *native
	watch  *watch
	// rebuild says that the next commit starts from what is found then.
	rebuild bool
	// adoption is nil unless a commit that started so was refused, at least in
	// part: those that follow it depend on what was found.
	adoption *adoption
	roster   roster
	ops      atomic.Uint64
}

// Operations implements [proxy.OperationCounter]: rules and chains that were
// written or removed.
func (k *kernel) Operations() uint64 { return k.ops.Load() }

// Check implements [backends.Checker].
func (k *kernel) Check(_ *proxy.Node, port *proxy.ServicePort) error { return k.renderer.fault(port) }

// Replace implements [backends.Replacer]: the whole comes in one commit, which
// looks itself at what is there, as every further one would copy the table anew.
func (k *kernel) Replace(context.Context, proxy.Snapshot, bool) (yes bool, pieces int) {
	k.rebuild, k.adoption, k.roster = true, nil, roster{}
	return true, 1
}

// Replaced implements [backends.Replacer]. What gave way went with the commit, unless
// that was refused: then what there is of service ports that were refused goes now.
func (k *kernel) Replaced(ctx context.Context) error {
	if k.adoption == nil {
		return nil
	}
	ops := k.adoption.rest()
	if _, err := k.write(ctx, ops); err != nil {
		return err
	}
	k.adoption.settle(nil, ops)
	return nil
}

// List implements [backends.Target].
func (k *kernel) List(ctx context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		s, err := k.find(ctx)
		if err != nil {
			yield(object{}, err)
			return
		}
		for _, o := range s.found.objects(k.renderer.names) {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// Commit implements [backends.Target].
func (k *kernel) Commit(ctx context.Context, ops []op) error {
	if err := k.commit(ctx, ops); err != nil {
		return err
	}
	k.roster.note(ops)
	return nil
}

func (k *kernel) commit(ctx context.Context, ops []op) error {
	isFirst := k.rebuild
	if err := k.begin(ctx, ops); err != nil {
		return err
	}
	if err := k.adopt(ctx, ops); err != nil {
		return k.diagnose(ctx, err, isFirst)
	}
	if isFirst {
		k.adoption = nil
	}
	return nil
}

// begin lists what is there before the one commit that follows Replace. If that fails, the
// commit is not tried in parts: each part would remove the rules of the others as
// unwanted.
func (k *kernel) begin(ctx context.Context, ops []op) error {
	if !k.rebuild {
		return nil
	}
	s, err := k.find(ctx)
	if err != nil {
		return fmt.Errorf("%w: listing rules: %w", backends.ErrUnavailable, err)
	}
	k.rebuild = false
	if len(s.found)+len(s.dead) > 0 {
		k.adoption = newAdoption(k.renderer.names, s.found, s.dead, ops)
		if s.blind {
			k.adoption.replaced = &s.picture
		}
	}
	return nil
}

// adopt writes operations, or what is left of them where all is found that there
// was.
func (k *kernel) adopt(ctx context.Context, asked []op) error {
	ops := asked
	if k.adoption != nil { // which knows of more rules than the roster does
		ops = k.adoption.plan(ops)
	} else {
		ops = k.roster.compact(ops)
	}
	if _, err := k.write(ctx, ops); err != nil {
		return err
	}
	if k.adoption == nil {
		return nil
	}
	k.adoption.settle(asked, ops)
	if old := k.adoption.replaced; old != nil {
		k.adoption.replaced = nil
		return k.removeJumps(ctx, old)
	}
	return nil
}

// removeJumps removes jumps that iptables cannot find.
func (k *kernel) removeJumps(ctx context.Context, of *picture) error {
	committed, err := k.native.removeJumps(ctx, of)
	if committed {
		k.watch.committed(ctx, 1, err)
	}
	if err != nil {
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
	if s.blind {
		if err := k.removeJumps(ctx, &s.picture); err != nil {
			return err
		}
	}
	kept, err := k.write(ctx, s.found.removal(k.renderer.names, s.dead))
	if err == nil && len(kept) > 0 {
		return fmt.Errorf("iptables: chains that rules of others jump to were emptied, but cannot be removed: %v", kept)
	}
	return err
}

// write carries out operations, all or none, by one process. Chains that cannot be
// removed, since rules of others lead there, stay empty, and are given.
func (k *kernel) write(ctx context.Context, ops []op) (kept []string, err error) {
	s, err := newScript(ops)
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
		if s, err = newScript(rest); err == nil {
			err = k.restore(ctx, s)
		}
	}
	switch {
	case err == nil:
		return kept, nil
	case s != whole:
		return nil, fmt.Errorf("%w: a part of a change was made: %w", proxy.ErrDataplaneLost, err)
	}
	return nil, k.undo(ctx, s, err)
}

// restore carries out a script.
func (k *kernel) restore(ctx context.Context, s *script) error {
	err := k.programs.restore(ctx, s.text)
	k.watch.committed(ctx, len(s.sections), err)
	if err == nil {
		k.ops.Add(s.rules)
	}
	if stop, ok := errors.AsType[*stopError](err); ok {
		stop.blame(s, k.renderer.names)
	}
	return err
}

// undo takes back what was carried out before an error. Most often there is
// nothing, since all that matters is in one table.
func (k *kernel) undo(ctx context.Context, s *script, cause error) error {
	if errors.Is(cause, proxy.ErrDataplaneLost) || errors.Is(cause, ErrLocked) && !k.begun(ctx, s, cause) {
		return cause // the next Apply lists everything, or nothing was written
	}
	var stop *stopError
	line := 1
	if errors.As(cause, &stop) && stop.line > 0 {
		line = stop.line
	} else if len(s.sections) > 1 {
		return fmt.Errorf("%w: the program did not name the line at which it stopped, so that a part of the change may have been made: %w", proxy.ErrDataplaneLost, cause)
	}
	done := s.committed(line)
	if len(done) == 0 {
		return cause
	}
	back := make([]op, 0, len(done))
	for _, o := range done {
		if o.Kind != backends.Add {
			return fmt.Errorf("%w: a part of a change was made: %w", proxy.ErrDataplaneLost, cause)
		}
		o.Kind = backends.Remove
		back = append(back, o)
	}
	inverse, err := newScript(back)
	if err == nil {
		err = k.programs.restore(context.WithoutCancel(ctx), inverse.text)
	}
	if err != nil {
		return fmt.Errorf("%w: a part of the change was made and cannot be undone (%w): %w", proxy.ErrDataplaneLost, err, cause)
	}
	return cause
}

// begun reports whether a script may have written a table before its program ended for
// want of the lock: iptables takes that for each, and lets others have it in between.
func (k *kernel) begun(ctx context.Context, s *script, cause error) bool {
	if _, ran := errors.AsType[*stopError](cause); !ran || len(s.sections) < 2 {
		return false
	}
	now, err := k.find(ctx)
	return err != nil || now.blind || slices.ContainsFunc(s.sections[0].ops, now.found.shows)
}
