package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

// errClosed ends the watch of a client that was closed.
var errClosed = errors.New("watching etcd: the client was closed")

// Watch implements [allocator.Store].
func (s *Store) Watch(ctx context.Context, after allocator.Version) iter.Seq2[allocator.Event, error] {
	return func(yield func(allocator.Event, error) bool) {
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		defer cancel()
		for answer := range s.client.Watch(ctx, s.claims, clientv3.WithPrefix(), clientv3.WithRev(int64(after)+1)) {
			if err := answer.Err(); err != nil {
				yield(allocator.Event{}, watchError(err))
				return
			}
			for _, e := range answer.Events {
				if event, isClaim := s.eventOf(e); isClaim && !yield(event, nil) {
					return
				}
			}
		}
		err := context.Cause(ctx)
		if err == nil {
			err = errClosed
		}
		yield(allocator.Event{}, err)
	}
}

func watchError(err error) error {
	if errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("%w: %w", allocator.ErrCompacted, err)
	}
	return fmt.Errorf("watching etcd: %w", err)
}

// eventOf returns the change of a claim; false if the path names no key.
func (s *Store) eventOf(e *clientv3.Event) (allocator.Event, bool) {
	if e.Type == mvccpb.DELETE {
		k, isClaim := s.keyOf(e.Kv.Key)
		return allocator.Event{Claim: allocator.Claim{Key: k, Version: allocator.Version(e.Kv.ModRevision)}, Deleted: true}, isClaim
	}
	c, isClaim := s.decode(e.Kv)
	return allocator.Event{Claim: c}, isClaim
}
