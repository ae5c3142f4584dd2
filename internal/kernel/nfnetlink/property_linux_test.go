package nfnetlink

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// model is a simple model of a table: the objects that the kernel must list after the
// commits.
type model struct {
	table Table
	sets  map[string]*Set
	elems map[string]map[elem]bool
}

// The kernel lists random tables as they were encoded, also after random changes.
func TestEncoderAgainstKernel(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	c := openInNamespace(t)
	remove := []Op{OpDelete, OpDestroy}
	if !hasDestroy(t, c) {
		remove[1] = OpDelete
	}
	var b Batch
	for round := range 20 {
		m := &model{
			table: Table{Family: []Family{IPv4, IPv6}[r.IntN(2)], Name: fmt.Sprintf("t%d", round)},
			sets:  make(map[string]*Set),
			elems: make(map[string]map[elem]bool),
		}
		b.Reset()
		b.AddTable(m.table)
		b.AddChain(m.table, Chain{Name: "c"})
		for i := range 1 + r.IntN(5) {
			m.addSet(&b, r, i)
		}
		for range 1 + r.IntN(4) {
			for _, name := range slices.Sorted(maps.Keys(m.sets)) {
				m.change(&b, r, name, remove)
			}
			commit(t, c, &b)
			m.compare(t, c)
			b.Reset()
		}
		b.DelTable(m.table)
		commit(t, c, &b)
		if t.Failed() {
			return
		}
	}
}

// hasDestroy reports whether the kernel supports OpDestroy.
func hasDestroy(t *testing.T, c *Conn) bool {
	t.Helper()
	table := Table{Family: IPv4, Name: "probe"}
	var b Batch
	b.AddTable(table)
	b.AddSet(table, &Set{Name: "s", Key: []Selector{SourceAddr}})
	w := b.Elements(OpDestroy, table, "s")
	w.Key([]byte{1, 2, 3, 4})
	b.DelTable(table)
	err := c.Commit(t.Context(), &b)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatalf("probe for OpDestroy: %v", err)
	}
	return err == nil
}

// addSet adds a random set of a kind that the kernel supports.
func (m *model) addSet(b *Batch, r *rand.Rand, i int) {
	fields := func(n int) []Selector {
		s := make([]Selector, n)
		for i := range s {
			s[i] = Selector(r.IntN(int(RandomIndex) + 1))
		}
		return s
	}
	s := &Set{Name: fmt.Sprintf("s%d", i), Key: fields(1 + r.IntN(3))}
	switch r.IntN(3) {
	case 0:
		s.Data = fields(1 + r.IntN(2))
	case 1:
		s.Verdicts = true
	}
	switch r.IntN(4) {
	case 0:
		s.Flags = SetTimeout
	case 1:
		s.Flags = SetDynamic
	case 2:
		if len(s.Key) == 1 {
			s.Key[0] = SourceAddr
			s.Flags = SetInterval
		}
	}
	if s.Flags&SetInterval == 0 && r.IntN(2) == 0 {
		s.Size = 10_000
	}
	m.sets[s.Name] = s
	m.elems[s.Name] = make(map[elem]bool)
	b.AddSet(m.table, s)
}

// change adds and removes some elements of a set.
func (m *model) change(b *Batch, r *rand.Rand, name string, remove []Op) {
	s, elems := m.sets[name], m.elems[name]
	if s.Flags&SetInterval != 0 {
		m.replaceRanges(b, r, name)
		return
	}
	all := slices.SortedFunc(maps.Keys(elems), func(a, b elem) int { return cmp.Compare(a.Key, b.Key) })
	for i, op := range remove {
		w := b.Elements(op, m.table, name)
		for j, e := range all {
			if j%2 == i && r.IntN(2) == 0 {
				w.Key([]byte(e.Key))
				delete(elems, e)
			}
		}
	}
	taken := make(map[string]bool)
	for e := range elems {
		taken[e.Key] = true
	}
	w := b.Elements(OpAdd, m.table, name)
	for range r.IntN(1000) {
		key := randomValue(r, m.table.Family, s.Key)
		if taken[string(key)] {
			continue
		}
		taken[string(key)] = true
		elems[m.write(&w, r, s, key)] = true
	}
}

// write adds an element with random data and returns it as a dump must have it.
func (m *model) write(w *ElementWriter, r *rand.Rand, s *Set, key []byte) elem {
	e := elem{Key: string(key)}
	switch {
	case s.Verdicts:
		verdicts := []Verdict{verdictAccept, VerdictDrop, verdictReturn, VerdictContinue, VerdictGoto, VerdictJump}
		v, chain := verdicts[r.IntN(len(verdicts))], ""
		if v == VerdictGoto || v == VerdictJump {
			chain = "c"
		}
		w.KeyVerdict(key, v, chain)
		e.Verdict = fmt.Sprintf("%d %s", v, chain)
	case len(s.Data) > 0:
		data := randomValue(r, m.table.Family, s.Data)
		w.KeyData(key, data)
		e.Data = string(data)
	default:
		w.Key(key)
	}
	return e
}

// replaceRanges replaces the intervals of a set by new ones that do not touch.
func (m *model) replaceRanges(b *Batch, r *rand.Rand, name string) {
	s := m.sets[name]
	flushSet(b, m.table, name)
	elems := make(map[elem]bool)
	m.elems[name] = elems
	var points [][]byte
	for range 2 * r.IntN(50) {
		points = append(points, randomValue(r, m.table.Family, s.Key))
	}
	slices.SortFunc(points, bytes.Compare)
	points = slices.CompactFunc(points, bytes.Equal)
	w := b.Elements(OpAdd, m.table, name)
	for pair := range slices.Chunk(points, 2) {
		if len(pair) < 2 {
			break
		}
		elems[m.write(&w, r, s, pair[0])] = true
		w.KeyEnd(pair[1])
		elems[elem{Key: string(pair[1]), End: true}] = true
	}
}

// randomValue makes a random value whose padding is zero, as the kernel requires.
func randomValue(r *rand.Rand, fam Family, sels []Selector) []byte {
	var b []byte
	for _, s := range sels {
		for range s.field(fam).size {
			b = append(b, byte(r.Uint32()))
		}
		if len(sels) > 1 {
			b = rawnetlink.Pad(b)
		}
	}
	return b
}

func (m *model) compare(t *testing.T, c *Conn) {
	t.Helper()
	infos := listSets(t, c, m.table)
	for name, s := range m.sets {
		if diff := gocmp.Diff(s.Spec(m.table.Family), infos[name].SetSpec); diff != "" {
			t.Errorf("%v, set %+v (-want +got):\n%s", m.table, s, diff)
		}
		if diff := gocmp.Diff(m.elems[name], elements(t, c, m.table, name)); diff != "" {
			t.Errorf("%v, elements of %+v (-want +got):\n%s", m.table, s, diff)
		}
	}
}
