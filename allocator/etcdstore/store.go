package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

// UnreadablePrefix begins the owner of a key whose claim is unreadable; the path of the
// claim in etcd follows. Such a key stays taken until the claim at that path is repaired,
// or the key is released in the name of this owner.
const UnreadablePrefix = allocator.Owner("unreadable:")

// pageSize is how many claims are read at once.
const pageSize = 1000

// Store keeps claims in etcd. Any number of goroutines may use it, and any number of
// stores in other processes the same prefix.
type Store struct {
	client  *clientv3.Client
	created string // the path that says that the store was set up
	claims  string // the prefix of the paths of claims

	mu       sync.Mutex
	queue    []*commit
	flushing bool
}

var _ allocator.Store = (*Store)(nil)

// New makes a store below a prefix such as "/example/allocator". It sends no request. The caller
// closes the client when it does not use the store any more.
func New(client *clientv3.Client, prefix string) *Store {
	prefix = strings.TrimRight(prefix, "/") + "/"
	return &Store{client: client, created: prefix + "created", claims: prefix + "claims/"}
}

// isCreated is the precondition that the store was set up.
func (s *Store) isCreated() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(s.created), ">", 0)
}

func (s *Store) errNotCreated() error {
	return fmt.Errorf("%w at %s in etcd, so no key can be allocated", allocator.ErrNoMap, s.created)
}

// get makes requests in one transaction. They need a store that was set up.
func (s *Store) get(ctx context.Context, gets ...clientv3.Op) (*clientv3.TxnResponse, error) {
	answer, err := s.client.Txn(ctx).If(s.isCreated()).Then(gets...).Commit()
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading etcd: %w", err)
	case !answer.Succeeded:
		return nil, s.errNotCreated()
	}
	return answer, nil
}

// Load implements [allocator.Store].
func (s *Store) Load(ctx context.Context) (allocator.State, error) {
	first, err := s.get(ctx, clientv3.OpGet(s.claims, clientv3.WithPrefix(), clientv3.WithLimit(pageSize)))
	if err != nil {
		return allocator.State{}, err
	}
	state := allocator.State{Version: allocator.Version(first.Header.Revision)}
	for page := first.Responses[0].GetResponseRange(); ; {
		state.Claims = s.appendClaims(state.Claims, page.Kvs)
		if !page.More {
			return state, nil
		}
		after := string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		next, err := s.client.Get(ctx, after, clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.claims)),
			clientv3.WithLimit(pageSize), clientv3.WithRev(first.Header.Revision))
		if err != nil {
			return allocator.State{}, fmt.Errorf("reading etcd: %w", err)
		}
		page = (*etcdserverpb.RangeResponse)(next)
	}
}

// Get implements [allocator.Store].
func (s *Store) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	var state allocator.State
	for begin := 0; begin == 0 || begin < len(keys); begin += maxOps {
		answer, err := s.get(ctx, s.getsOf(keys[begin:min(begin+maxOps, len(keys))])...)
		if err != nil {
			return allocator.State{}, err
		}
		if begin == 0 { // later reads are not older
			state.Version = allocator.Version(answer.Header.Revision)
		}
		state.Claims = slices.Concat(state.Claims, s.claimsIn(answer))
	}
	return state, nil
}

// getsOf returns the requests for the claims of some keys.
func (s *Store) getsOf(keys []allocator.Key) (gets []clientv3.Op) {
	for _, k := range keys {
		gets = append(gets, clientv3.OpGet(s.claims+k.String()))
	}
	return gets
}

// claimsIn returns the claims in the responses of a transaction.
func (s *Store) claimsIn(answer *clientv3.TxnResponse) (claims []allocator.Claim) {
	for _, r := range answer.Responses {
		claims = s.appendClaims(claims, r.GetResponseRange().Kvs)
	}
	return claims
}

func (s *Store) appendClaims(claims []allocator.Claim, kvs []*mvccpb.KeyValue) []allocator.Claim {
	for _, kv := range kvs {
		if c, isClaim := s.decode(kv); isClaim {
			claims = append(claims, c)
		}
	}
	return claims
}
