package affinity

import (
	"sync"
	"sync/atomic"
	"time"
)

// Budget limits the number of clients in several tables together. At the limit, one of the
// largest tables removes the client that has been idle for longest. So clients that fill
// one table do not remove those of other tables.
//
// The methods may be called from several goroutines at once.
type Budget struct {
	limit int64
	used  atomic.Int64

	mu      sync.Mutex // may be locked while a table is locked, not the other way round
	tables  map[*Table]struct{}
	largest *Table // as far as is known; may be nil
}

// NewBudget returns a budget for limit clients, at least one.
func NewBudget(limit int) *Budget {
	return &Budget{limit: max(1, int64(limit)), tables: map[*Table]struct{}{}}
}

// NewTable returns an empty table, as the function [NewTable] does, that shares the
// budget. Call [Table.SetTimeout] with zero for a table that is not used any more; until
// then its clients count.
func (b *Budget) NewTable(timeout time.Duration, limit int) *Table {
	t := NewTable(timeout, limit)
	t.budget = b
	return t
}

// Len returns the number of clients in all tables.
func (b *Budget) Len() int { return int(b.used.Load()) }

// Expire removes all clients whose timeout has passed. A table does that itself in each
// call, but an idle table gets no calls.
func (b *Budget) Expire() {
	b.mu.Lock()
	all := make([]*Table, 0, len(b.tables))
	for t := range b.tables {
		all = append(all, t)
	}
	b.mu.Unlock()
	for _, t := range all {
		_ = t.Len() // every call expires clients
	}
}

// take counts one more client, and reports false at the limit. A nil Budget has no limit.
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

// grown records that a table has one more client, size in total.
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

// shrunk records that a table has one client less, size in total.
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

// samples is how many tables makeRoom compares with the one recorded as the largest,
// which may have shrunk since.
const samples = 16

// makeRoom removes a client of the largest table, and reports whether it had one.
func (b *Budget) makeRoom() bool {
	b.mu.Lock()
	left := samples
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
