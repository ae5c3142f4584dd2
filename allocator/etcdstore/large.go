package etcdstore

import (
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

// etcd accepts 128 operations in a transaction, and as many comparisons. But a transaction
// can hold nested ones, and a comparison can be of an interval of keys. So a commit of
// many keys is still one transaction if their ranges are so small that comparing all of
// their claims costs etcd little.
const (
	// maxLarge bounds the keys of a transaction with nested ones.
	maxLarge = 1000
	// maxRow bounds the keys of a range whose claims are all compared.
	maxRow = 1 << 13
	// nested is how many operations a nested transaction has.
	nested = 50
	// maxAreas bounds the ranges of a store, as each may need a comparison.
	maxAreas = 8
	// maxRequest bounds the bytes of a transaction: etcd accepts 1.5 MiB.
	maxRequest = 1_400_000
	// maxMaps bounds the bytes of all maps, so that maxOps claims fit beside them.
	maxMaps = 9 << 17
)

// fits reports whether a transaction can make all of these changes.
func (s *Store) fits(ops []allocator.Op) bool {
	if len(ops) <= maxOps {
		return true
	}
	inLarge, size := 0, s.mapBytes()
	for _, op := range ops {
		size += s.sizeOf(op)
		if at, _, err := s.find(op.Claim.Key); err != nil || s.areas[at].keys.Size() > maxRow {
			inLarge++
		}
	}
	return len(ops) <= maxLarge && inLarge <= nested && size <= maxRequest
}

// mapBytes is the size of all maps.
func (s *Store) mapBytes() (size int) {
	for _, a := range s.areas {
		size += a.byteCount()
	}
	return size
}

// sizeOf is about how many bytes an operation adds to a transaction.
func (s *Store) sizeOf(op allocator.Op) int {
	const path, rest = 64, 200 // of a key; of the record and of the comparison
	size := len(s.claims) + path + rest
	if !op.Delete {
		size += len(op.Claim.Owner)
	}
	return size
}

// row is an interval of paths of claims, ordered as strings.
type row struct{ first, last string }

func (r *row) add(path string) {
	if r.last == "" {
		r.first = path
	}
	r.first, r.last = min(r.first, path), max(r.last, path)
}

// unchangedSince requires that no claim of a row has changed since a revision. It does not
// see deleted claims; comparing the map does.
func (r *row) unchangedSince(revision allocator.Version) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(r.first), "<", int64(revision)+1).WithRange(r.last + "\x00")
}

// nest puts operations that are too many for a transaction into nested ones.
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

// flat returns the responses to operations that may have been nested.
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
