package affinity

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func client(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)})
}

func endpoint(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 8080)
}

// naive is a simple implementation of the documentation of Table.
type naive struct {
	timeout time.Duration
	limit   int
	clients []naiveClient // the one that was used last is last
}

type naiveClient struct {
	addr     netip.Addr
	endpoint netip.AddrPort
	used     time.Time
}

func (n *naive) keep(which func(c naiveClient) bool) (gone int) {
	var kept []naiveClient
	for _, c := range n.clients {
		if which(c) {
			kept = append(kept, c)
		}
	}
	gone = len(n.clients) - len(kept)
	n.clients = kept
	return gone
}

func (n *naive) expire() {
	n.keep(func(c naiveClient) bool { return time.Since(c.used) < n.timeout })
}

func (n *naive) get(a netip.Addr) (netip.AddrPort, bool) {
	n.expire()
	for _, c := range n.clients {
		if c.addr == a {
			n.put(a, c.endpoint)
			return c.endpoint, true
		}
	}
	return netip.AddrPort{}, false
}

func (n *naive) put(a netip.Addr, e netip.AddrPort) {
	n.expire()
	if n.timeout <= 0 {
		return
	}
	n.keep(func(c naiveClient) bool { return c.addr != a })
	if len(n.clients) >= n.limit {
		n.clients = n.clients[1:]
	}
	n.clients = append(n.clients, naiveClient{a, e, time.Now()})
}

func (n *naive) remove(e netip.AddrPort) int {
	n.expire()
	return n.keep(func(c naiveClient) bool { return c.endpoint != e })
}

// step makes the same call of a table and its model, and returns an error if they differ.
func step(table *Table, model *naive, code [3]byte) error {
	op, a, b := code[0], code[1], code[2]
	c, e := client(int(a%24)), endpoint(int(b%6))
	switch op % 6 {
	case 0, 1:
		got, ok := table.Get(c)
		want, wanted := model.get(c)
		if got != want || ok != wanted {
			return fmt.Errorf("Get(%v): got %v, %t, want %v, %t", c, got, ok, want, wanted)
		}
	case 2:
		table.Put(c, e)
		model.put(c, e)
	case 3:
		if got, want := table.Remove(e), model.remove(e); got != want {
			return fmt.Errorf("Remove(%v): got %d clients, want %d", e, got, want)
		}
	case 4:
		time.Sleep(time.Duration(a) * 20 * time.Millisecond)
	case 5:
		model.timeout = time.Duration(b%8) * time.Second
		table.SetTimeout(model.timeout)
	}
	model.expire()
	if got, want := table.Len(), len(model.clients); got != want {
		return fmt.Errorf("Len: got %d, want %d", got, want)
	}
	return nil
}

func TestTableIsAsItsModel(t *testing.T) {
	random := testenv.Random(t)
	for range 50 {
		limit := 1 + random.IntN(20)
		synctest.Test(t, func(t *testing.T) {
			table, model := NewTable(3*time.Second, limit), &naive{timeout: 3 * time.Second, limit: limit}
			for i := range 400 {
				op := byte(random.Uint32())
				if op%6 == 5 && random.IntN(8) != 0 {
					op = 2
				}
				if err := step(table, model, [3]byte{op, byte(random.Uint32()), byte(random.Uint32())}); err != nil {
					t.Fatalf("step %d, limit %d: %v", i, limit, err)
				}
			}
		})
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte{2, 1, 1, 0, 1, 0, 4, 200, 0, 0, 1, 0, 3, 0, 1, 0, 1, 0})
	f.Add([]byte{2, 1, 1, 2, 2, 1, 2, 3, 1, 2, 4, 1, 3, 0, 1, 2, 1, 2, 5, 0, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		synctest.Test(t, func(t *testing.T) {
			table, model := NewTable(2*time.Second, 3), &naive{timeout: 2 * time.Second, limit: 3}
			for ; len(ops) >= 3; ops = ops[3:] {
				testenv.NoError(t, step(table, model, [3]byte(ops)))
			}
		})
	})
}

func TestTableForgetsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(10*time.Second, 0)
		table.Put(client(1), endpoint(1))
		for range 3 {
			time.Sleep(9 * time.Second)
			if got, ok := table.Get(client(1)); !ok || got != endpoint(1) {
				t.Fatalf("9 s after the last connection: got %v, %t, want %v", got, ok, endpoint(1))
			}
		}
		time.Sleep(10 * time.Second)
		if got, ok := table.Get(client(1)); ok {
			t.Fatalf("10 s after the last connection: got %v, want nothing", got)
		}
	})
}

func TestTableWithoutTimeoutRemembersNothing(t *testing.T) {
	table := NewTable(0, 0)
	table.Put(client(1), endpoint(1))
	if n := table.Len(); n != 0 {
		t.Errorf("got %d clients, want none", n)
	}
}

func TestTableIsBounded(t *testing.T) {
	table := NewTable(time.Hour, 100)
	for i := range 10_000 {
		table.Put(client(i), endpoint(i%7))
	}
	if n := table.Len(); n != 100 {
		t.Errorf("got %d clients, want 100", n)
	}
	if clients, endpoints := table.byAge.Len(), len(table.endpoints); clients != 100 || endpoints != 7 {
		t.Errorf("got %d entries and %d endpoints for 100 clients of 7 endpoints", clients, endpoints)
	}
	for i := range 10_000 {
		if _, ok := table.Get(client(i)); ok != (i >= 9900) {
			t.Fatalf("client %d of 10000: kept: got %t, want only the last 100", i, ok)
		}
	}
}

func TestTableUnderRace(t *testing.T) {
	table := NewTable(time.Hour, 50)
	random := testenv.Random(t)
	var wg sync.WaitGroup
	for range 4 {
		seed := random.Uint64()
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for range 5000 {
				switch r.IntN(4) {
				case 0:
					table.Put(client(r.IntN(100)), endpoint(r.IntN(5)))
				case 1:
					table.Remove(endpoint(r.IntN(5)))
				default:
					table.Get(client(r.IntN(100)))
				}
			}
		})
	}
	wg.Wait()
	for i := range 5 {
		table.Remove(endpoint(i))
	}
	if n := table.Len(); n != 0 {
		t.Errorf("with all endpoints removed: got %d clients, want none", n)
	}
}

func TestTableHitAllocatesNothing(t *testing.T) {
	table := NewTable(time.Hour, 0)
	for i := range 1000 {
		table.Put(client(i), endpoint(i%10))
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() { table.Get(client(i % 1000)); i++ }); n != 0 {
		t.Errorf("Get: got %v allocations, want 0", n)
	}
}

// A dual-stack socket shows IPv4 clients with mapped addresses: they are the same clients.
func TestTableUnmaps(t *testing.T) {
	table := NewTable(time.Hour, 0)
	plain, mapped := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("::ffff:192.0.2.7")
	server := netip.MustParseAddrPort("10.0.0.5:8080")
	table.Put(mapped, netip.MustParseAddrPort("[::ffff:10.0.0.5]:8080"))
	for _, client := range []netip.Addr{plain, mapped} {
		if got, ok := table.Get(client); !ok || got != server {
			t.Errorf("endpoint of %v: got %v, %t, want %v", client, got, ok, server)
		}
	}
	table.Put(plain, server)
	if n := table.Len(); n != 1 {
		t.Errorf("got %d clients, want one", n)
	}
	if n := table.Remove(netip.MustParseAddrPort("[::ffff:10.0.0.5]:8080")); n != 1 {
		t.Errorf("Remove: got %d clients, want one", n)
	}
}
