package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

// Imported owns the keys that a map has as taken and that have no claim.
const Imported = allocator.Owner("imported")

// UnreadablePrefix begins the owner of a key whose claim is unreadable; the path of the
// claim in etcd follows. Such a key stays taken until the claim at that path is repaired,
// or the key is released in the name of this owner.
const UnreadablePrefix = allocator.Owner("unreadable:")

const (
	// maxAreas bounds the ranges of a store, as each may need a comparison.
	maxAreas = 8
	// maxMaps bounds the bytes of all maps, so that maxOps claims fit beside them: etcd accepts
	// 1.5 MiB in a transaction.
	maxMaps = 9 << 17
)

// pageSize is how many claims are read at once.
const pageSize = 1000

// Store keeps claims in etcd. Any number of goroutines may use it, and any number of
// stores in other processes the same prefix.
type Store struct {
	client *clientv3.Client
	claims string // the prefix of their paths
	areas  []area

	mu       sync.Mutex
	queue    []*commit
	flushing bool
	// known are the maps that this process has read or written last, or nil. Only flush uses
	// them.
	known []bitmap
}

var _ allocator.Store = (*Store)(nil)

// New makes a store below a prefix such as "/example/allocator", for 1 to 8 ranges, which
// must not overlap. Their maps, with a bit for each key, must not be larger than 1.125 MiB
// together; otherwise the error is [allocator.ErrTooLarge]. New sends no request. The caller
// closes the client when it does not use the store any more.
//
// The pools and the repair of the store should have the same ranges, with the Limit
// [rangemap.Limit] for IPv6. They would choose other keys of a larger range, too, which the
// store refuses with [allocator.ErrNotInRange].
func New(client *clientv3.Client, prefix string, ranges ...allocator.Config) (*Store, error) {
	prefix = strings.TrimRight(prefix, "/") + "/"
	s := &Store{client: client, claims: prefix + "claims/"}
	for _, c := range ranges {
		a, err := newArea(prefix, c)
		if err != nil {
			return nil, err
		}
		for _, other := range s.areas {
			if overlap(a, other) {
				return nil, fmt.Errorf("%w ranges: %s and %s overlap", allocator.ErrInvalid, other.name, a.name)
			}
		}
		s.areas = append(s.areas, a)
	}
	size := 0
	for _, a := range s.areas {
		size += a.byteCount()
	}
	if size > maxMaps {
		return nil, fmt.Errorf("the maps of all ranges would have %d bytes, more than %d: %w", size, maxMaps, allocator.ErrTooLarge)
	}
	if n := len(s.areas); n == 0 || n > maxAreas {
		return nil, fmt.Errorf("%w number of ranges: %d is not within 1 and %d", allocator.ErrInvalid, n, maxAreas)
	}
	return s, nil
}

func overlap(a, b area) bool {
	_, begins := a.keys.Offset(b.keys.Key(0))
	_, isWithin := b.keys.Offset(a.keys.Key(0))
	return begins || isWithin
}

// find returns the area of a key, and its bit there.
func (s *Store) find(k allocator.Key) (at int, bit uint64, err error) {
	var names []string
	for at, a := range s.areas {
		if bit, ok := a.keys.Offset(k); ok {
			return at, bit, nil
		}
		names = append(names, a.name)
	}
	return 0, 0, &allocator.RangeError{Reason: allocator.ErrNotInRange, Key: k, Range: strings.Join(names, ", ")}
}

// Load implements [allocator.Store].
func (s *Store) Load(ctx context.Context) (allocator.State, error) {
	first, err := s.client.Txn(ctx).Then(append(s.getMaps(),
		clientv3.OpGet(s.claims, clientv3.WithPrefix(), clientv3.WithLimit(pageSize)))...).Commit()
	if err != nil {
		return allocator.State{}, fmt.Errorf("reading etcd: %w", err)
	}
	maps, err := s.readMaps(first.Responses)
	if err != nil {
		return allocator.State{}, err
	}
	state := allocator.State{Version: allocator.Version(first.Header.Revision)}
	page := first.Responses[len(s.areas)].GetResponseRange()
	for {
		for _, kv := range page.Kvs {
			if c, isClaim := s.decode(kv); isClaim {
				state.Claims = append(state.Claims, c)
			}
		}
		if !page.More {
			state.Claims = append(state.Claims, s.bare(maps, state.Claims)...)
			return state, nil
		}
		if page, err = s.nextPage(ctx, page, first.Header.Revision); err != nil {
			return allocator.State{}, err
		}
	}
}

// nextPage reads the claims that follow those of a page, as they were at a revision.
func (s *Store) nextPage(ctx context.Context, page *etcdserverpb.RangeResponse, revision int64) (*etcdserverpb.RangeResponse, error) {
	after := string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	next, err := s.client.Get(ctx, after, clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.claims)),
		clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
	if err != nil {
		return nil, fmt.Errorf("reading etcd: %w", err)
	}
	return (*etcdserverpb.RangeResponse)(next), nil
}

// bare returns the claims of bits that are set without one of these claims.
func (s *Store) bare(maps []bitmap, claims []allocator.Claim) []allocator.Claim {
	held := make(map[allocator.Key]struct{}, len(claims))
	for _, c := range claims {
		held[c.Key] = struct{}{}
	}
	var all []allocator.Claim
	for at := range s.areas {
		for _, k := range s.areas[at].keysIn(maps[at]) {
			if _, isHeld := held[k]; !isHeld {
				all = append(all, maps[at].bare(k))
			}
		}
	}
	return all
}

// Get implements [allocator.Store].
func (s *Store) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	var state allocator.State
	for begin := 0; begin == 0 || begin < len(keys); begin += maxOps {
		v, err := s.readView(ctx, keys[begin:min(begin+maxOps, len(keys))])
		if err != nil {
			return allocator.State{}, err
		}
		if begin == 0 { // later reads are not older
			state.Version = v.version
		}
		for _, k := range keys[begin:min(begin+maxOps, len(keys))] {
			if c := v.current(s, k); c.Version != 0 {
				state.Claims = append(state.Claims, c)
			}
		}
	}
	return state, nil
}

// view has some claims and all maps at one revision.
type view struct {
	version allocator.Version
	maps    []bitmap
	claims  map[allocator.Key]allocator.Claim
}

// current returns the claim of a key in the view; the zero Claim if it is free.
func (v view) current(s *Store, k allocator.Key) allocator.Claim {
	if c, ok := v.claims[k]; ok {
		return c
	}
	if at, bit, err := s.find(k); err == nil && v.maps[at].has(bit) {
		return v.maps[at].bare(k)
	}
	return allocator.Claim{}
}

// readView reads all maps and the claims of some keys.
func (s *Store) readView(ctx context.Context, keys []allocator.Key) (view, error) {
	gets := s.getMaps()
	for _, k := range keys {
		gets = append(gets, clientv3.OpGet(s.claims+k.String()))
	}
	answer, err := s.client.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return view{}, fmt.Errorf("reading etcd: %w", err)
	}
	v := view{version: allocator.Version(answer.Header.Revision), claims: map[allocator.Key]allocator.Claim{}}
	if v.maps, err = s.readMaps(answer.Responses); err != nil {
		return view{}, err
	}
	for _, r := range answer.Responses[len(s.areas):] {
		for _, kv := range r.GetResponseRange().Kvs {
			if c, isClaim := s.decode(kv); isClaim {
				v.claims[c.Key] = c
			}
		}
	}
	return v, nil
}

func (s *Store) getMaps() []clientv3.Op {
	var gets []clientv3.Op
	for _, a := range s.areas {
		gets = append(gets, clientv3.OpGet(a.path))
	}
	return gets
}

func (s *Store) readMaps(responses []*etcdserverpb.ResponseOp) ([]bitmap, error) {
	maps := make([]bitmap, len(s.areas))
	var all error
	for at := range s.areas {
		kvs := responses[at].GetResponseRange().Kvs
		if len(kvs) == 0 {
			all = errors.Join(all, fmt.Errorf("%w at %s in etcd, so no key of %s can be allocated",
				allocator.ErrNoMap, s.areas[at].path, s.areas[at].name))
			continue
		}
		var err error
		maps[at], err = s.areas[at].decode(kvs[0].Value, kvs[0].CreateRevision, kvs[0].ModRevision)
		all = errors.Join(all, err)
	}
	if all != nil {
		return nil, all
	}
	return maps, nil
}
