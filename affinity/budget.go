package affinity

import (
	"sync"
	"sync/atomic"
	"time"
)

// Budget bounds how many clients several tables remember together. When they
// would be more, a large table forgets the client that has been silent for longest: the
// one that has grown last to more than the others, or the largest of some. So who fills
// one table does not empty the others.
//
// The methods may be called from several goroutines at once.
type Budget struct {
	limit int64
	used  atomic.Int64

	mu      sync.Mutex // may be taken with the lock of a table, not the other way round
	tables  map[*Table]struct{}
	largest *Table // as far as is known; may be nil
}

// NewBudget gives a budget of as many clients as limit says, at least one.
func NewBudget(limit int) *Budget {
	return &Budget{limit: max(1, int64(limit)), tables: map[*Table]struct{}{}}
}

// NewTable gives an empty table as the function of that name does, which shares
// the budget. A table that is not used any more should be emptied, by
// [Table.SetTimeout]; until then it has its part of the budget.
func (b *Budget) NewTable(timeout time.Duration, limit int) *Table {
	t := NewTable(timeout, limit)
	t.budget = b
	return t
}

// Len gives the number of clients that all tables remember.
func (b *Budget) Len() int { return int(b.used.Load()) }

// Expire forgets all clients whose time is up. It is for tables that nobody uses,
// which otherwise keep theirs.
func (b *Budget) Expire() {
	b.mu.Lock()
	all := make([]*Table, 0, len(b.tables))
	for t := range b.tables {
		all = append(all, t)
	}
	b.mu.Unlock()
	for _, t := range all {
		_ = t.Len() // as everything, it looks for those
	}
}

// take counts one more client, unless there are too many. Tables without a budget
// have a nil one.
func (b *Budget) take() bool {
	if b == nil {
		return true
	}
	if b.used.Add(1) <= b.limit {
		return true
	}
	b.used.Add(-1)
	return false
}

// grown is told of each table that has one client more, grown to size.
func (b *Budget) grown(t *Table, size int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if size == 1 {
		b.tables[t] = struct{}{}
	}
	if b.largest == nil || size > b.largest.size.Load() {
		b.largest = t
	}
}

// shrunk is told of each table that has one client less.
func (b *Budget) shrunk(t *Table, size int64) {
	if b == nil {
		return
	}
	b.used.Add(-1)
	if size > 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.tables, t)
	if b.largest == t {
		b.largest = nil
	}
}

// looks is how many tables are looked at for the largest one: others than that
// which has grown last may have become it, when that was emptied.
const looks = 16

// makeRoom has the largest table forget a client, and reports whether there is
// one.
func (b *Budget) makeRoom() bool {
	b.mu.Lock()
	left := looks
	for t := range b.tables {
		if b.largest == nil || t.size.Load() > b.largest.size.Load() {
			b.largest = t
		}
		if left--; left == 0 {
			break
		}
	}
	t := b.largest
	b.mu.Unlock()
	return t != nil && t.forgetOne()
}
