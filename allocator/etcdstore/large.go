package etcdstore

import (
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

// etcd takes 128 operations in a transaction, and as many comparisons. But a transaction
// can hold others, which may have what is left to the one around them; and a comparison can
// be of a row of keys. So a commit of many keys is still one transaction where they are in
// ranges so small that to compare all of their claims costs etcd little.
const (
	// maxLarge is how many keys a transaction changes at most that holds others.
	maxLarge = 1000
	// maxRow is how many keys a range has at most of which all claims are compared.
	maxRow = 1 << 13
	// nested is how many operations are in each of the transactions inside.
	nested = 50
	// maxAreas is how many ranges a store has at most, as each may need a comparison.
	maxAreas = 8
)

// fits reports whether a transaction can make all of these changes.
func (s *Store) fits(ops []allocator.Op) bool {
	if len(ops) <= maxOps {
		return true
	}
	inLarge := 0
	for _, op := range ops {
		if at, _, err := s.find(op.Claim.Key); err != nil || s.areas[at].size > maxRow {
			inLarge++
		}
	}
	return len(ops) <= maxLarge && inLarge <= nested
}

// row is an interval of paths of claims, which are ordered as texts.
type row struct{ first, last string }

func (r *row) add(path string) {
	if r.last == "" {
		r.first = path
	}
	r.first, r.last = min(r.first, path), max(r.last, path)
}

// unchangedSince compares all claims of a row with a revision. Claims that are gone since
// it does not tell; their bits do.
func (r *row) unchangedSince(revision allocator.Version) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(r.first), "<", int64(revision)+1).WithRange(r.last + "\x00")
}

// nest puts operations that are too many for a transaction into several inside.
func nest(ops []clientv3.Op) []clientv3.Op {
	if len(ops) <= maxOps+maxAreas {
		return ops
	}
	var all []clientv3.Op
	for part := range slices.Chunk(ops, nested) {
		all = append(all, clientv3.OpTxn(nil, part, nil))
	}
	return all
}

// flat gives the answers to operations that may have been nested.
func flat(responses []*etcdserverpb.ResponseOp) []*etcdserverpb.ResponseOp {
	var all []*etcdserverpb.ResponseOp
	for _, r := range responses {
		if inner := r.GetResponseTxn(); inner != nil {
			all = append(all, inner.Responses...)
		} else {
			all = append(all, r)
		}
	}
	return all
}
