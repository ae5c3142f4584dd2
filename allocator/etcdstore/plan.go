package etcdstore

import (
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
)

// plan is one transaction.
type plan struct {
	compares []clientv3.Cmp
	writes   []clientv3.Op
	// bits are those of the maps that change, by area; nil for the others.
	bits [][]byte
}

// plan returns the transaction of a batch, from the view of the previous attempt; nil if it
// would fail because the known maps contradict it.
func (s *Store) plan(batch []*commit, seen view) *plan {
	if s.known == nil {
		return nil
	}
	p := &plan{bits: make([][]byte, len(s.areas))}
	for _, c := range batch {
		for i, op := range c.ops {
			_, isWritten := seen.claims[op.Claim.Key]
			if !s.add(p, op, c.texts[i], isWritten) {
				return nil
			}
		}
	}
	for at, bits := range p.bits {
		if bits != nil {
			p.compares = append(p.compares, clientv3.Compare(clientv3.ModRevision(s.areas[at].path), "=", s.known[at].modified))
			p.writes = append(p.writes, clientv3.OpPut(s.areas[at].path, s.areas[at].encode(bits)))
		}
	}
	return p
}

// add adds an operation to a plan. It reports false if the known map contradicts the
// operation. A claim with the revision of the map is probably only a bit of it, unless a
// record was seen: a restored etcd may have map and claims of one transaction.
func (s *Store) add(p *plan, op allocator.Op, text string, isWritten bool) bool {
	k := op.Claim.Key
	at, bit, err := s.find(k)
	if err != nil {
		return false
	}
	m := s.known[at]
	revision := int64(op.Claim.Version)
	switch isBare := revision == m.created && !isWritten; {
	case (revision == 0 || isBare) && m.has(bit) != isBare:
		return false
	case isBare:
		revision = 0
	}
	path := s.claims + k.String()
	p.compares = append(p.compares, clientv3.Compare(clientv3.ModRevision(path), "=", revision))
	if revision == 0 || op.Delete {
		p.bits[at] = m.with(p.bits[at], bit, !op.Delete)
	}
	if op.Delete {
		p.writes = append(p.writes, clientv3.OpDelete(path))
		return true
	}
	p.writes = append(p.writes, clientv3.OpPut(path, text))
	return true
}

// after returns the maps after the transaction, which got this revision.
func (p *plan) after(maps []bitmap, revision int64) []bitmap {
	maps = slices.Clone(maps)
	for at, bits := range p.bits {
		if bits != nil {
			maps[at] = bitmap{created: maps[at].created, modified: revision, bits: bits}
		}
	}
	return maps
}
