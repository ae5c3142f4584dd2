package etcdstore

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/vipkit/vipkit/allocator"
)

const (
	// maxOps bounds the claims that a transaction changes: etcd accepts 128 operations, and
	// the maps need some of them.
	maxOps = 120
	// requestTime bounds a transaction.
	requestTime = 10 * time.Second
	// undoTime bounds undoing the first parts of a commit.
	undoTime = 10 * time.Second
	// maxYields is how often next yields to goroutines that may join a transaction.
	maxYields = 64
	// attempts is how often a transaction is tried when other processes change its maps.
	attempts = 100
)

// commit is a change that waits for its transaction.
type commit struct {
	ctx     context.Context
	ops     []allocator.Op
	texts   []string // the record of each claim
	version allocator.Version
	err     error
	done    chan struct{}
}

func (c *commit) end(err error) {
	c.err = err
	close(c.done)
}

// Commit implements [allocator.Store]. A commit of more than 120 keys is made in parts.
func (s *Store) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.check(ops); err != nil {
		return nil, err
	}
	if len(ops) > maxOps {
		return s.commitParts(ctx, ops)
	}
	version, err := s.commitOne(ctx, ops)
	if err != nil {
		return nil, err
	}
	return slices.Repeat([]allocator.Version{version}, len(ops)), nil
}

func (s *Store) check(ops []allocator.Op) error {
	if err := allocator.CheckOps(ops); err != nil {
		return err
	}
	for _, op := range ops {
		if _, _, err := s.find(op.Claim.Key); err != nil {
			return err
		}
	}
	return nil
}

// commitOne waits until a transaction has made the change.
func (s *Store) commitOne(ctx context.Context, ops []allocator.Op) (allocator.Version, error) {
	// The operations are cloned: commitOne may return before they are written.
	c := &commit{ctx: ctx, ops: slices.Clone(ops), texts: make([]string, len(ops)), done: make(chan struct{})}
	for i, op := range ops {
		var err error
		if c.texts[i], err = encode(op.Claim); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	s.queue = append(s.queue, c)
	if !s.flushing {
		s.flushing = true
		go s.flush()
	}
	s.mu.Unlock()
	select {
	case <-c.done:
		return c.version, c.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// commitParts makes a change that is too large for one transaction. If a part fails, it
// undoes the previous ones.
func (s *Store) commitParts(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	before, err := s.before(ctx, ops)
	if err != nil {
		return nil, err
	}
	var versions []allocator.Version
	for part := range slices.Chunk(ops, maxOps) {
		version, err := s.commitOne(ctx, part)
		if err != nil {
			return nil, s.undo(ctx, ops[:len(versions)], versions, before, err)
		}
		versions = append(versions, slices.Repeat([]allocator.Version{version}, len(part))...)
	}
	return versions, nil
}

// before returns the claims that a change replaces.
func (s *Store) before(ctx context.Context, ops []allocator.Op) (map[allocator.Key]allocator.Claim, error) {
	var keys []allocator.Key
	for _, op := range ops {
		if op.Claim.Version != 0 {
			keys = append(keys, op.Claim.Key)
		}
	}
	before := make(map[allocator.Key]allocator.Claim, len(keys))
	if len(keys) == 0 {
		return before, nil
	}
	state, err := s.Get(ctx, keys...)
	for _, c := range state.Claims {
		before[c.Key] = c
	}
	return before, err
}

// undo undoes changes because a later one has failed. If that fails, the outcome is
// unknown, and the error is no conflict any more.
func (s *Store) undo(ctx context.Context, done []allocator.Op, versions []allocator.Version, before map[allocator.Key]allocator.Claim, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	var back []allocator.Op
	for i, op := range done {
		old, existed := before[op.Claim.Key]
		switch {
		case !existed:
			op.Claim.Version = versions[i]
			back = append(back, allocator.Op{Claim: op.Claim, Delete: true})
		case op.Delete:
			old.Version = 0
			back = append(back, allocator.Op{Claim: old})
		default:
			old.Version = versions[i]
			back = append(back, allocator.Op{Claim: old})
		}
	}
	for part := range slices.Chunk(back, maxOps) {
		if _, err := s.commitOne(ctx, part); err != nil {
			return fmt.Errorf("%w: %s, and undoing the other changes failed: %w", allocator.ErrUnknown, cause.Error(), err)
		}
	}
	return cause
}

// flush makes transactions until no commit waits.
func (s *Store) flush() {
	for last := 0; ; {
		batch := s.next(last)
		if batch == nil {
			return
		}
		last = len(batch)
		s.send(batch)
	}
}

// next returns the commits of the next transaction. When a transaction ends, its callers
// are likely to commit again at once; next waits for them, so that they share the next
// one.
func (s *Store) next(last int) []*commit {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range maxYields {
		if len(s.queue) >= last {
			break
		}
		s.mu.Unlock()
		runtime.Gosched()
		s.mu.Lock()
	}
	if len(s.queue) == 0 {
		s.flushing = false
		return nil
	}
	var batch, rest []*commit
	ops, keys := 0, map[allocator.Key]struct{}{}
	for _, c := range s.queue {
		if ops+len(c.ops) > maxOps || !c.join(keys) {
			rest = append(rest, c)
			continue
		}
		ops += len(c.ops)
		batch = append(batch, c)
	}
	s.queue = rest
	return batch
}

// join adds the keys of a commit to those of a transaction, or reports false: a
// transaction can change a key only once.
func (c *commit) join(keys map[allocator.Key]struct{}) bool {
	for _, op := range c.ops {
		if _, has := keys[op.Claim.Key]; has {
			return false
		}
	}
	for _, op := range c.ops {
		keys[op.Claim.Key] = struct{}{}
	}
	return true
}

// send makes one transaction of a batch. It retries without the commits that conflict
// with the stored claims.
func (s *Store) send(batch []*commit) {
	var v view
	for range attempts {
		batch = slices.DeleteFunc(batch, func(c *commit) bool {
			err := c.ctx.Err()
			if err != nil {
				c.end(err)
			}
			return err != nil
		})
		if len(batch) == 0 {
			return
		}
		var version allocator.Version
		var err error
		version, v, err = s.try(batch, v)
		if err == nil && version == 0 {
			batch = s.endConflicts(batch, v)
			continue
		}
		for _, c := range batch {
			c.version = version
			c.end(err)
		}
		return
	}
	for _, c := range batch {
		c.end(fmt.Errorf("giving up after %d attempts, other processes changed a map each time: %w", attempts, allocator.ErrConflict))
	}
}

// endConflicts ends the commits that conflict with the stored claims, and gives the
// others.
func (s *Store) endConflicts(batch []*commit, v view) []*commit {
	return slices.DeleteFunc(batch, func(c *commit) bool {
		for _, op := range c.ops {
			if current := v.current(s, op.Claim.Key); current.Version != op.Claim.Version {
				c.end(&allocator.ConflictError{Key: op.Claim.Key, Current: current})
				return true
			}
		}
		return false
	})
}

// try makes one transaction of a batch, from the view of the previous attempt. Version 0
// without an error means that a precondition did not hold; the new view has the current
// claims and maps.
func (s *Store) try(batch []*commit, seen view) (allocator.Version, view, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	p := s.plan(batch, seen)
	if p == nil {
		return s.refresh(ctx, batch)
	}
	answer, err := s.client.Txn(ctx).If(p.compares...).Then(p.writes...).Commit()
	if err != nil {
		s.known = nil
		return 0, view{}, fmt.Errorf("writing to etcd: %w", err)
	}
	if answer.Succeeded {
		s.known = p.after(s.known, answer.Header.Revision)
		return allocator.Version(answer.Header.Revision), view{}, nil
	}
	return s.refresh(ctx, batch)
}

// refresh reads the maps and the claims of a batch.
func (s *Store) refresh(ctx context.Context, batch []*commit) (allocator.Version, view, error) {
	v, err := s.readView(ctx, keysOf(batch))
	s.known = v.maps
	return 0, v, err
}

func keysOf(batch []*commit) []allocator.Key {
	var keys []allocator.Key
	for _, c := range batch {
		for _, op := range c.ops {
			keys = append(keys, op.Claim.Key)
		}
	}
	return keys
}
