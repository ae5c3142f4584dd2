package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

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
		prefix := strings.TrimSuffix(s.claims, "claims/")
		for answer := range s.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(int64(after)+1), clientv3.WithPrevKV()) {
			if err := answer.Err(); err != nil {
				yield(allocator.Event{}, watchError(err))
				return
			}
			if !s.yieldEvents(answer.Events, yield) {
				return
			}
		}
		err := context.Cause(ctx)
		if err == nil {
			err = errClosed
		}
		yield(allocator.Event{}, err)
	}
}

// yieldEvents yields the changes of some transactions. It reports false if the loop has ended.
func (s *Store) yieldEvents(all []*clientv3.Event, yield func(allocator.Event, error) bool) bool {
	for _, change := range revisions(all) {
		events, err := s.eventsOf(change)
		if err != nil {
			yield(allocator.Event{}, err)
			return false
		}
		for _, e := range events {
			if !yield(e, nil) {
				return false
			}
		}
	}
	return true
}

func watchError(err error) error {
	if errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("%w: %w", allocator.ErrCompacted, err)
	}
	return fmt.Errorf("watching etcd: %w", err)
}

// revisions groups events by the transaction that made them.
func revisions(events []*clientv3.Event) [][]*clientv3.Event {
	var groups [][]*clientv3.Event
	for begin := 0; begin < len(events); {
		end := begin
		for end < len(events) && events[end].Kv.ModRevision == events[begin].Kv.ModRevision {
			end++
		}
		groups = append(groups, events[begin:end])
		begin = end
	}
	return groups
}

// eventsOf returns the changes of one transaction: claims, and bits without a claim.
func (s *Store) eventsOf(change []*clientv3.Event) ([]allocator.Event, error) {
	var events []allocator.Event
	seen := map[allocator.Key]struct{}{}
	for _, e := range change {
		k, isClaim := s.keyOf(e.Kv.Key)
		if !isClaim {
			continue
		}
		seen[k] = struct{}{}
		if e.Type == mvccpb.DELETE {
			gone := allocator.Claim{Key: k, Version: allocator.Version(e.Kv.ModRevision)}
			events = append(events, allocator.Event{Claim: gone, Deleted: true})
			continue
		}
		if c, isClaim := s.decode(e.Kv); isClaim {
			events = append(events, allocator.Event{Claim: c})
		}
	}
	for _, e := range change {
		bare, err := s.bitsOf(e)
		if err != nil {
			return nil, err
		}
		for _, b := range bare {
			if _, isSeen := seen[b.Claim.Key]; !isSeen {
				events = append(events, b)
			}
		}
	}
	return events, nil
}

// bitsOf returns the changes of an event in a map, as claims of bits without a record. The
// claim of a bit has the revision at which the map was created.
func (s *Store) bitsOf(e *clientv3.Event) ([]allocator.Event, error) {
	at := slices.IndexFunc(s.areas, func(a area) bool { return a.path == string(e.Kv.Key) })
	if at < 0 || e.Type == mvccpb.DELETE || e.IsCreate() {
		return nil, nil
	}
	a := &s.areas[at]
	if e.PrevKv == nil {
		// etcd still has the change, but has compacted the value before it.
		return nil, fmt.Errorf("%w: the value of %s before revision %d", allocator.ErrCompacted, a.path, e.Kv.ModRevision)
	}
	before, err1 := a.decode(e.PrevKv.Value, 0, 0)
	now, err2 := a.decode(e.Kv.Value, e.Kv.CreateRevision, e.Kv.ModRevision)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	var events []allocator.Event
	for _, k := range a.keysIn(before.without(now)) {
		gone := allocator.Claim{Key: k, Version: allocator.Version(e.Kv.ModRevision)}
		events = append(events, allocator.Event{Claim: gone, Deleted: true})
	}
	for _, k := range a.keysIn(now.without(before)) {
		events = append(events, allocator.Event{Claim: now.bare(k)})
	}
	return events, nil
}
