package affinity

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testenv"
)

func other(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}) }

// Whoever floods one table finds room there only, and not in the others.
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
			t.Errorf("client %d of the small table is forgotten, since the other one is flooded", n)
		}
	}
	if _, ok := flooded.Get(other(9999)); !ok {
		t.Error("the newest client is not remembered")
	}
	for n := range 30 {
		small.Put(client(100+n), endpoint(1))
	}
	if _, ok := small.Get(client(0)); !ok || b.Len() != 100 {
		t.Errorf("the small table grows: got %d clients in all, its first there: %t; want 100, true", b.Len(), ok)
	}
}

// What is emptied gives back all that it had, also if it was the largest.
func TestBudgetIsGivenBack(t *testing.T) {
	b := NewBudget(50)
	one, two := b.NewTable(time.Hour, 0), b.NewTable(time.Hour, 0)
	for n := range 20 {
		one.Put(client(n), endpoint(1))
		two.Put(client(n), endpoint(n%2))
	}
	two.SetTimeout(0)
	if b.Len() != 20 {
		t.Errorf("with one of two tables emptied, got %d clients, want 20", b.Len())
	}
	for n := range 1000 {
		one.Put(other(n), endpoint(1))
	}
	if b.Len() != 50 || one.Len() != 50 {
		t.Errorf("got %d clients, %d in the table that is left, want 50 and 50", b.Len(), one.Len())
	}
	one.Remove(endpoint(1))
	if b.Len() != 0 {
		t.Errorf("with all tables empty, got %d clients, want none", b.Len())
	}
}

func TestBudgetForgetsForTablesThatNobodyUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(10)
		b.NewTable(time.Minute, 0).Put(client(1), endpoint(1))
		time.Sleep(2 * time.Minute)
		b.Expire()
		if b.Len() != 0 {
			t.Errorf("got %d clients after their time, want none", b.Len())
		}
	})
}

// Whatever is done by however many, the budget knows what is in the tables.
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
				if n := b.Len(); n > 40+4 { // each may be about to find out that there is no room
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
		t.Errorf("the budget has %d clients, the tables %d, want the same, and 40 at most", b.Len(), sum)
	}
}
