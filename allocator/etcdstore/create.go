package etcdstore

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

// Create sets the store up with these claims, unless it is. No key of them is free in between: the
// store counts as set up when all of them are written. A claim that exists already, since a former
// Create was interrupted or the store has lost only PREFIX/created, stays as it is.
func (s *Store) Create(ctx context.Context, claims ...allocator.Claim) error {
	isMissing := clientv3.Compare(clientv3.CreateRevision(s.created), "=", 0)
	var puts []clientv3.Op
	for _, c := range claims {
		text, err := encode(c)
		if err != nil {
			return fmt.Errorf("creating the store: %w", err)
		}
		path := s.claims + c.Key.String()
		isFree := clientv3.Compare(clientv3.CreateRevision(path), "=", 0)
		puts = append(puts, clientv3.OpTxn([]clientv3.Cmp{isFree}, []clientv3.Op{clientv3.OpPut(path, text)}, nil))
	}
	steps := append(slices.Collect(slices.Chunk(puts, maxOps)), []clientv3.Op{clientv3.OpPut(s.created, "")})
	for _, step := range steps {
		answer, err := s.client.Txn(ctx).If(isMissing).Then(step...).Commit()
		if err != nil {
			return fmt.Errorf("creating the store: %w", err)
		}
		if !answer.Succeeded {
			return nil // Another process was faster.
		}
	}
	return nil
}
