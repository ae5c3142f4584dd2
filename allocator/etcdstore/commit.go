package etcdstore

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

const (
	// maxOps bounds the claims that a transaction changes: etcd accepts 128 operations.
	maxOps = 120
	// requestTime bounds a transaction.
	requestTime = 10 * time.Second
	// undoTime bounds undoing the first parts of a commit.
	undoTime = 10 * time.Second
	// maxYields is how often next yields to goroutines that may join a transaction.
	maxYields = 64
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
	if err := allocator.CheckOps(ops); err != nil {
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

// join adds the keys of a commit to the keys of a transaction, or reports false: a
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

// send makes one transaction of a batch. It tries again without the commits that conflict
// with the stored claims.
func (s *Store) send(batch []*commit) {
	for len(batch) > 0 {
		if batch = endEnded(batch); len(batch) == 0 {
			return
		}
		answer, err := s.try(batch)
		if err == nil && !answer.Succeeded {
			batch = s.endConflicts(batch, answer)
			continue
		}
		for _, c := range batch {
			if err == nil {
				c.version = allocator.Version(answer.Header.Revision)
			}
			c.end(err)
		}
		return
	}
}

// endEnded ends the commits whose contexts have ended, and gives the others.
func endEnded(batch []*commit) []*commit {
	return slices.DeleteFunc(batch, func(c *commit) bool {
		err := c.ctx.Err()
		if err != nil {
			c.end(err)
		}
		return err != nil
	})
}

// try makes one transaction of a batch. If a precondition does not hold, the answer has the claims
// of the batch.
func (s *Store) try(batch []*commit) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	compares := []clientv3.Cmp{s.isCreated()}
	var writes []clientv3.Op
	var keys []allocator.Key
	for _, c := range batch {
		for i, op := range c.ops {
			path := s.claims + op.Claim.Key.String()
			compares = append(compares, clientv3.Compare(clientv3.ModRevision(path), "=", int64(op.Claim.Version)))
			if keys = append(keys, op.Claim.Key); op.Delete {
				writes = append(writes, clientv3.OpDelete(path))
			} else {
				writes = append(writes, clientv3.OpPut(path, c.texts[i]))
			}
		}
	}
	otherwise := append(s.getsOf(keys), clientv3.OpGet(s.created))
	answer, err := s.client.Txn(ctx).If(compares...).Then(writes...).Else(otherwise...).Commit()
	if err != nil {
		return nil, fmt.Errorf("writing to etcd: %w", err)
	}
	return answer, nil
}

// endConflicts ends the commits that conflict with the claims in an answer, and gives the
// others. It ends all if the store was not set up.
func (s *Store) endConflicts(batch []*commit, answer *clientv3.TxnResponse) []*commit {
	stored := map[allocator.Key]allocator.Claim{}
	for _, c := range s.claimsIn(answer) {
		stored[c.Key] = c
	}
	isCreated := len(answer.Responses[len(answer.Responses)-1].GetResponseRange().Kvs) > 0
	return slices.DeleteFunc(batch, func(c *commit) bool {
		if !isCreated {
			c.end(s.errNotCreated())
			return true
		}
		for _, op := range c.ops {
			if current := stored[op.Claim.Key]; current.Version != op.Claim.Version {
				c.end(&allocator.ConflictError{Key: op.Claim.Key, Current: current})
				return true
			}
		}
		return false
	})
}
