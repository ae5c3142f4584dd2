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
			if !s.tell(answer.Events, yield) {
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

// tell hands over what some transactions have changed. It gives false if that was the end.
func (s *Store) tell(all []*clientv3.Event, yield func(allocator.Event, error) bool) bool {
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

// eventsOf gives what one transaction has changed: claims, and bits of which there is
// nothing else.
func (s *Store) eventsOf(change []*clientv3.Event) ([]allocator.Event, error) {
	var events []allocator.Event
	told := map[allocator.Key]struct{}{}
	for _, e := range change {
		k, isClaim := s.keyOf(e.Kv.Key)
		if !isClaim {
			continue
		}
		told[k] = struct{}{}
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
			if _, isTold := told[b.Claim.Key]; !isTold {
				events = append(events, b)
			}
		}
	}
	return events, nil
}

// bitsOf gives what an event has changed in a map, as if nothing else were known of it.
// The version of a key whose bit was set is that which its claim has from now on.
func (s *Store) bitsOf(e *clientv3.Event) ([]allocator.Event, error) {
	at := slices.IndexFunc(s.areas, func(a area) bool { return a.path == string(e.Kv.Key) })
	if at < 0 || e.Type == mvccpb.DELETE || e.IsCreate() {
		return nil, nil
	}
	a := &s.areas[at]
	if e.PrevKv == nil {
		// etcd tells of a change that it has not compacted yet, and not of what was before it.
		return nil, fmt.Errorf("%w: what %s was before revision %d", allocator.ErrCompacted, a.path, e.Kv.ModRevision)
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
