package nfnetlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestBatchMistakes(t *testing.T) {
	t.Parallel()
	table := Table{Family: IPv4, Name: "vip"}
	set := func(s Set) func(*Batch) { return func(b *Batch) { b.AddSet(table, &s) } }
	tests := []struct {
		name  string
		build func(b *Batch)
		want  error
	}{
		{"no table name", func(b *Batch) { b.DelTable(Table{Family: IPv4}) }, errName},
		{"long table name", func(b *Batch) { b.DelTable(Table{Name: strings.Repeat("a", 256)}) }, errName},
		{"no chain name", func(b *Batch) { b.DelChain(table, "") }, errName},
		{"set without name", set(Set{}), errName},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b Batch
			tt.build(&b)
			if err := b.Err(); !errors.Is(err, tt.want) {
				t.Errorf("Err: got %v, want %v", err, tt.want)
			}
			first := b.Err()
			b.DelTable(Table{})
			if !errors.Is(b.Err(), first) {
				t.Errorf("Err after another mistake: got %v, want the first one, %v", b.Err(), first)
			}
			if b.Reset(); b.Err() != nil {
				t.Errorf("Err after Reset: got %v, want nil", b.Err())
			}
		})
	}
}

func TestBatchRefusesRuleTooLong(t *testing.T) {
	t.Parallel()
	var b Batch
	b.AddRule(Table{Family: IPv4, Name: "vip"}, "a", make([]byte, 1<<16), nil)
	if b.Err() == nil {
		t.Errorf("Err after a rule of %d bytes: got nil, want an error", b.Len())
	}
}

func TestBatchCounts(t *testing.T) {
	t.Parallel()
	table := Table{Family: IPv4, Name: "vip"}
	var b Batch
	if !b.Empty() || b.Len() != 0 {
		t.Errorf("zero batch: got Empty %v, Len %d; want true, 0", b.Empty(), b.Len())
	}
	w := b.Elements(OpAdd, table, "s")
	if !b.Empty() {
		t.Error("Empty after a writer without elements: got false, want true")
	}
	w.Key([]byte{1})
	w.Key([]byte{2})
	b.AddTable(table)
	w.Key([]byte{3})
	if b.Empty() || b.messages != 3 {
		t.Errorf("batch with messages: got Empty %v, %d messages; want false, 3", b.Empty(), b.messages)
	}
	if promised, sent := b.Len(), len(b.seal(1)); promised != sent {
		t.Errorf("Len: got %d, want the %d bytes that are sent", promised, sent)
	}
	b.unseal()

	// A writer that outlives a Reset must not write into the new content.
	b.Reset()
	b.AddTable(table)
	before := bytes.Clone(b.buf)
	w.Key([]byte{4})
	if !bytes.HasPrefix(b.buf, before) || b.messages != 2 {
		t.Errorf("after Reset: got %d messages, earlier content kept: %v; want 2, true", b.messages, bytes.HasPrefix(b.buf, before))
	}
}

// seal numbers all messages and requests one acknowledgement, of the last real message;
// unseal restores the batch.
func TestBatchSeal(t *testing.T) {
	t.Parallel()
	table := Table{Family: IPv4, Name: "vip"}
	var b Batch
	b.AddTable(table)
	b.AddChain(table, Chain{Name: "a"})
	b.DelChain(table, "a")
	before := bytes.Clone(b.buf)
	for _, first := range []uint32{1, 1<<32 - 2} {
		rest := messages(b.seal(first))
		types := []uint16{
			unix.NFNL_MSG_BATCH_BEGIN,
			unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE,
			unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWCHAIN,
			unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELCHAIN,
			unix.NFNL_MSG_BATCH_END,
		}
		for i, want := range types {
			m, ok := rest.Next()
			if !ok || m.Type != want || m.Seq != first+uint32(i) {
				t.Fatalf("message %d: got type %#x, number %d, %v; want %#x, %d", i, m.Type, m.Seq, ok, want, first+uint32(i))
			}
			if got := m.Flags&unix.NLM_F_ACK != 0; got != (i == 3) {
				t.Errorf("message %d: acknowledgement requested: got %v, want %v", i, got, i == 3)
			}
		}
		testenv.Same(t, 0, len(rest), "bytes after the end of the batch")
		b.unseal()
		after := bytes.Clone(b.buf)
		for i := range b.messages + 1 {
			m := b.at(uint32(i))
			binary.NativeEndian.PutUint32(m[8:], 0)
		}
		if !bytes.Equal(before, b.buf) {
			t.Errorf("batch after unseal: got\n% x, want\n% x", after, before)
		}
	}
}

// Every list of elements is clearly shorter than the 64 KiB at which its length wraps, and
// every element is in one.
func TestElementListsAreSplit(t *testing.T) {
	t.Parallel()
	table := Table{Family: IPv4, Name: "vip"}
	const n = 20_000
	var b Batch
	w := b.Elements(OpAdd, table, "s")
	key := make([]byte, 16)
	for i := range uint32(n) {
		binary.BigEndian.PutUint32(key, i)
		switch i % 3 {
		case 0:
			w.KeyData(key, key[:8])
		case 1:
			w.KeyVerdict(key, VerdictGoto, strings.Repeat("c", int(i)%200+1))
		default:
			w.KeyEnd(key)
		}
	}
	next := uint32(0)
	for i := 1; i <= b.messages; i++ {
		m := b.at(uint32(i))
		if len(m) > maxList+100 {
			t.Errorf("message %d: got %d bytes, want at most %d", i, len(m), maxList+100)
		}
		var e Element
		list := attrs(m[headerLen:]).Find(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		err := eachElement(list, &e, func(e *Element) error {
			if got := binary.BigEndian.Uint32(e.Key); got != next {
				t.Fatalf("message %d: got element %d, want %d", i, got, next)
			}
			next++
			return nil
		})
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	testenv.Same(t, n, next, "elements in the messages")
}

// Once the buffer has grown, building the same again allocates nothing.
func TestBuildingAllocatesNothing(t *testing.T) {
	table := Table{Family: IPv6, Name: "vip"}
	key, data := make([]byte, 28), make([]byte, 20)
	var b Batch
	allocs := testing.AllocsPerRun(10, func() {
		b.Reset()
		b.AddTable(table)
		b.AddChain(table, Chain{Name: "a", Base: BaseChain{Type: "nat", Hook: Output}})
		for _, op := range []Op{OpDelete, OpAdd, OpDestroy} {
			w := b.Elements(op, table, "s")
			for range 1000 {
				w.Key(key)
				w.KeyEnd(key)
				w.KeyData(key, data)
				w.KeyVerdict(key, VerdictJump, "a")
			}
		}
	})
	if allocs != 0 {
		t.Errorf("building a batch of %d bytes: got %v allocations, want 0", b.Len(), allocs)
	}
}
