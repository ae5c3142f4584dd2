package allocator

import (
	"math/rand/v2"
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

// TestTablesAgainstModel compares both tables with a naive set, at sizes around
// multiples of a word and of a chunk.
func TestTablesAgainstModel(t *testing.T) {
	for _, n := range []uint64{1, 2, 14, 63, 64, 65, 254, 256, 257, 4094, 4096, 4097, 65535, 262_144, 300_001} {
		rnd := testenv.Random(t)
		var blocked []span
		if n > 200 {
			blocked = []span{{5, 5}, {60, 140}, {n - 3, n - 2}}
		}
		for name, table := range map[string]table{
			"dense":  newDense(n, blocked, true),
			"sparse": newSparse(n, blocked, rnd.Uint64()),
		} {
			m := tableModel{t: t, name: name, n: n, table: table, blocked: blocked, taken: map[uint64]Owner{}}
			for range 3000 {
				m.step(rnd)
			}
			m.fill()
		}
	}
}

type tableModel struct {
	t       *testing.T
	name    string
	n       uint64
	table   table
	blocked []span
	taken   map[uint64]Owner
}

func (m *tableModel) isFree(i uint64) bool {
	_, isBlocked := blockedAt(m.blocked, i)
	return m.taken[i] == "" && !isBlocked
}

func (m *tableModel) step(rnd *rand.Rand) {
	m.t.Helper()
	// Mostly at the beginning, so that many taken offsets follow one another.
	i := rnd.Uint64N(m.n)
	if rnd.IntN(3) > 0 {
		i = rnd.Uint64N(min(m.n, 600))
	}
	switch free := m.isFree(i); {
	case m.table.isFree(i) != free:
		m.t.Fatalf("%s of %d: isFree(%d): got %t, want %t", m.name, m.n, i, !free, free)
	case free && rnd.IntN(4) > 0:
		m.taken[i] = Owner(rune('a' + rnd.IntN(26)))
		m.table.take(i, m.taken[i])
	case m.taken[i] != "" && rnd.IntN(2) > 0:
		m.table.put(i)
		delete(m.taken, i)
	}
	if owner, held := m.table.owner(i); owner != m.taken[i] || held != (m.taken[i] != "") {
		m.t.Fatalf("%s of %d: owner(%d): got %q, %t, want %q", m.name, m.n, i, owner, held, m.taken[i])
	}
	want, found := i, false
	for ; want < m.n && !found; want++ {
		found = m.isFree(want)
	}
	if got, ok := m.table.next(i); ok != found || found && got != want-1 {
		m.t.Fatalf("%s of %d: next(%d): got %d, %t, want %d, %t", m.name, m.n, i, got, ok, want-1, found)
	}
}

// fill takes all free offsets, and then frees all.
func (m *tableModel) fill() {
	m.t.Helper()
	for i, ok := m.table.next(0); ok; i, ok = m.table.next(i) {
		m.taken[i] = "filler"
		m.table.take(i, "filler")
	}
	free := m.n
	for _, s := range m.blocked {
		free -= s.last - s.first + 1
	}
	if uint64(len(m.taken)) != free {
		m.t.Fatalf("%s of %d: taken when full: got %d, want %d", m.name, m.n, len(m.taken), free)
	}
	for i := range m.taken {
		m.table.put(i)
	}
	if s, ok := m.table.(*sparse); ok {
		for _, chunk := range s.chunks {
			for _, e := range chunk {
				if e != (entry{}) {
					m.t.Fatalf("%s of %d: owner kept after all offsets were freed: got %q, want none", m.name, m.n, e.owner)
				}
			}
		}
	}
	if rest, _ := m.table.after(0, make([]entry, 0, 1)); len(rest) > 0 {
		m.t.Fatalf("%s of %d: entries after all offsets were freed: got %v, want none", m.name, m.n, rest)
	}
}
