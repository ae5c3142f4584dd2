package affinity

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func other(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}) }

// Many new clients of one table remove clients of that table, and not of others.
func TestBudgetTakesFromTheLargest(t *testing.T) {
	b := NewBudget(100)
	small, flooded := b.NewTable(time.Hour, 0), b.NewTable(time.Hour, 0)
	for n := range 10 {
		small.Put(client(n), endpoint(1))
	}
	for n := range 10_000 {
		flooded.Put(other(n), endpoint(2))
	}
	if b.Len() != 100 || small.Len() != 10 || flooded.Len() != 90 {
		t.Errorf("got %d clients, %d and %d of them, want 100, 10 and 90", b.Len(), small.Len(), flooded.Len())
	}
	for n := range 10 {
		if _, ok := small.Get(client(n)); !ok {
			t.Errorf("small table: got no client %d, want it kept", n)
		}
	}
	if _, ok := flooded.Get(other(9999)); !ok {
		t.Error("large table: got no newest client, want it kept")
	}
	for n := range 30 {
		small.Put(client(100+n), endpoint(1))
	}
	if _, ok := small.Get(client(0)); !ok || b.Len() != 100 {
		t.Errorf("after the small table has grown: got %d clients in all, its first one kept: %t; want 100, true", b.Len(), ok)
	}
}

// A known client changes its endpoint also when the budget has no room.
func TestKnownClientNeedsNoRoom(t *testing.T) {
	b := NewBudget(1)
	table := b.NewTable(time.Hour, 0)
	table.Put(client(1), endpoint(1))
	b.limit = 0 // as if another goroutine took the room that the client gives up
	table.Put(client(1), endpoint(2))
	if got, ok := table.Get(client(1)); !ok || got != endpoint(2) || b.Len() != 1 {
		t.Errorf("got endpoint %v, %t, and %d clients, want %v, true, 1", got, ok, b.Len(), endpoint(2))
	}
	if n := table.Remove(endpoint(1)); n != 0 {
		t.Errorf("clients of the former endpoint: got %d, want none", n)
	}
}

// An emptied table returns its share of the budget, also if it was the largest.
func TestBudgetIsGivenBack(t *testing.T) {
	b := NewBudget(50)
	one, two := b.NewTable(time.Hour, 0), b.NewTable(time.Hour, 0)
	for n := range 20 {
		one.Put(client(n), endpoint(1))
		two.Put(client(n), endpoint(n%2))
	}
	two.SetTimeout(0)
	if b.Len() != 20 {
		t.Errorf("with one of two tables emptied: got %d clients, want 20", b.Len())
	}
	for n := range 1000 {
		one.Put(other(n), endpoint(1))
	}
	if b.Len() != 50 || one.Len() != 50 {
		t.Errorf("got %d clients, %d in the other table, want 50 and 50", b.Len(), one.Len())
	}
	one.Remove(endpoint(1))
	if b.Len() != 0 {
		t.Errorf("with all tables empty: got %d clients, want none", b.Len())
	}
}

func TestBudgetExpiresClientsOfIdleTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(10)
		b.NewTable(time.Minute, 0).Put(client(1), endpoint(1))
		time.Sleep(2 * time.Minute)
		b.Expire()
		if b.Len() != 0 {
			t.Errorf("after the timeout: got %d clients, want none", b.Len())
		}
	})
}

// The count of the budget is that of its tables, also with concurrent calls.
func TestBudgetIsRight(t *testing.T) {
	r := testenv.Random(t)
	b := NewBudget(40)
	var tables []*Table
	for range 30 {
		tables = append(tables, b.NewTable(time.Hour, 25))
	}
	var wg sync.WaitGroup
	for range 4 {
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		wg.Go(func() {
			for range 5000 {
				table := tables[r.IntN(len(tables))]
				switch r.IntN(20) {
				case 0:
					table.Remove(endpoint(r.IntN(3)))
				case 1:
					table.SetTimeout(time.Duration(r.IntN(2)) * time.Hour)
				default:
					table.Put(client(r.IntN(100)), endpoint(r.IntN(3)))
				}
				if n := b.Len(); n > 40+4 { // each goroutine may count one client before it finds no room
					t.Errorf("got %d clients, want 40 at most", n)
				}
			}
		})
	}
	wg.Wait()
	sum := 0
	for _, table := range tables {
		sum += table.Len()
	}
	if b.Len() != sum || sum > 40 {
		t.Errorf("got %d clients in the budget and %d in the tables, want the same, and at most 40", b.Len(), sum)
	}
}
