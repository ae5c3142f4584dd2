package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/rangemap"
)

// Create makes the maps that do not exist. They have the bits of these claims from the
// beginning; Create writes the owners after that. If that is interrupted, the keys
// belong to [Imported]. Create ignores claims of a map that exists.
func (s *Store) Create(ctx context.Context, claims ...allocator.Claim) error {
	byArea := make([][]allocator.Claim, len(s.areas))
	for _, c := range claims {
		at, _, err := s.find(c.Key)
		if err != nil {
			return fmt.Errorf("making a map: %w", err)
		}
		byArea[at] = append(byArea[at], c)
	}
	var all []allocator.Op
	for at, held := range byArea {
		ops, err := s.createOne(ctx, &s.areas[at], held)
		if err != nil {
			return err
		}
		all = append(all, ops...)
	}
	for part := range slices.Chunk(all, maxOps) {
		// A claim that another process has changed meanwhile is newer.
		if _, err := s.commitOne(ctx, part); err != nil && !errors.Is(err, allocator.ErrConflict) {
			return fmt.Errorf("writing the owners: %w", err)
		}
	}
	return nil
}

// createOne makes one map, and gives the operations that write its owners.
func (s *Store) createOne(ctx context.Context, a *area, claims []allocator.Claim) ([]allocator.Op, error) {
	b := bitmap{bits: make([]byte, a.byteCount())}
	bits := b.bits
	for _, c := range claims {
		bit, _ := a.keys.Offset(c.Key)
		bits = b.with(bits, bit, true)
	}
	created, err := s.put(ctx, a, a.encode(bits))
	if err != nil || created == 0 {
		return nil, err
	}
	var ops []allocator.Op
	for _, c := range claims {
		c.Version = allocator.Version(created)
		ops = append(ops, allocator.Op{Claim: c})
	}
	return ops, nil
}

// put stores a map and gives the revision; 0 if the map exists already.
func (s *Store) put(ctx context.Context, a *area, object string) (int64, error) {
	answer, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(a.path), "=", 0)).
		Then(clientv3.OpPut(a.path, object)).Commit()
	switch {
	case err != nil:
		return 0, fmt.Errorf("making the map of %s: %w", a.name, err)
	case !answer.Succeeded:
		return 0, nil
	}
	return answer.Header.Revision, nil
}

// Import makes the map of one of the store's ranges from another map, for instance one in
// the etcd of a cluster. If the range has a map already, Import changes nothing, and the
// error is [allocator.ErrConflict].
func (s *Store) Import(ctx context.Context, m rangemap.Map) error {
	if _, err := m.Keys(); err != nil {
		return fmt.Errorf("importing a map: %w", err)
	}
	for i := range s.areas {
		a := &s.areas[i]
		if a.name != m.Range {
			continue
		}
		created, err := s.put(ctx, a, string(m.Marshal()))
		if err == nil && created == 0 {
			err = fmt.Errorf("importing a map of %s: the range has a map already: %w", m.Range, allocator.ErrConflict)
		}
		return err
	}
	return fmt.Errorf("%w map: the store has no range %s", allocator.ErrInvalid, m.Range)
}
