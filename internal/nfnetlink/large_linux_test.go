package nfnetlink

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// bigSet has a size, so that it can be dumped right after it was filled.
func bigSet() *Set {
	return &Set{
		Name: "endpoints", Size: 300_000,
		Key: []Selector{DestAddr, L4Proto, DestPort, RandomIndex}, Data: []Selector{DestAddr, DestPort},
	}
}

// bigKey writes key i of 16 bytes and its datum of 8 bytes.
func bigKey(key, data []byte, i int) {
	binary.BigEndian.PutUint32(key, 10<<24|uint32(i/10))
	key[4] = tcp
	binary.BigEndian.PutUint16(key[8:], 80)
	binary.NativeEndian.PutUint32(key[12:], uint32(i%10))
	binary.BigEndian.PutUint32(data, 172<<24|uint32(i))
	binary.BigEndian.PutUint16(data[4:], 8080)
}

// bigIndex is the inverse of bigKey, -1 when the element is none of its.
func bigIndex(e *Element) int {
	if len(e.Key) != 16 || len(e.Data) != 8 {
		return -1
	}
	i := int(binary.BigEndian.Uint32(e.Key)-10<<24)*10 + int(binary.NativeEndian.Uint32(e.Key[12:]))
	var key, data [16]byte
	bigKey(key[:], data[:8], i)
	if !slices.Equal(e.Key, key[:]) || !slices.Equal(e.Data, data[:8]) {
		return -1
	}
	return i
}

// fill appends a span of elements until the batch has reached its
// limit, and returns the next one.
func fill(b *Batch, table Table, r span, limit int) int {
	const most = 60 + 100 // an element, and a message that may start with it
	var key, data [16]byte
	w := b.Elements(OpAdd, table, bigSet().Name)
	first := r.first
	for first < r.behind && b.Len()+most <= limit {
		bigKey(key[:], data[:8], first)
		w.KeyData(key[:], data[:8])
		first++
	}
	return first
}

// span is a range of numbers of elements.
type span struct{ first, behind int }

// load fills the big set with n elements in as few transactions as the
// connection allows, and returns their number.
func load(t testing.TB, c *Conn, table Table, n int) (commits int) {
	t.Helper()
	var b Batch
	b.AddTable(table, "")
	b.AddSet(table, bigSet())
	for i := 0; i < n; commits++ {
		i = fill(&b, table, span{i, n}, c.MaxBatch())
		commit(t, c, &b)
		b.Reset()
	}
	return commits
}

// wantAll checks that each element from 0 to n-1 is dumped once.
func wantAll(t *testing.T, c *Conn, table Table, n int) {
	t.Helper()
	var seen []int
	err := c.Elements(t.Context(), table, bigSet().Name, Visitor[Element]{
		Begin: func() { seen = make([]int, n) },
		Each: func(e *Element) error {
			i := bigIndex(e)
			if i < 0 || i >= n {
				t.Errorf("element %x : %x was never written", e.Key, e.Data)
				return errors.New("stop")
			}
			seen[i]++
			return nil
		},
	})
	if err != nil {
		t.Fatalf("Elements: %v", err)
	}
	for i, times := range seen {
		if times != 1 {
			t.Fatalf("element %d was dumped %d times, want once", i, times)
		}
	}
	if got := listSets(t, c, table)[bigSet().Name].Count; got != n && got != -1 {
		t.Errorf("the kernel counts %d elements, want %d", got, n)
	}
}

// Privileged, 300,000 elements go in one transaction. With the buffer that
// anyone may have, the same is refused before it is sent and goes in parts.
func TestHugeBatch(t *testing.T) {
	const n = 300_000
	c := openInNamespace(t)
	table := Table{Family: IPv4, Name: "vip"}
	var b Batch
	b.AddTable(table, "")
	b.AddSet(table, bigSet())
	if got := fill(&b, table, span{0, n}, 1<<30); got != n {
		t.Fatalf("filled %d elements, want %d", got, n)
	}
	err := c.Commit(t.Context(), &b)
	var size *SizeError
	switch {
	case errors.As(err, &size):
		if !netnstest.InUserNamespace(t) {
			t.Fatalf("Commit of %d bytes with privileges: %v", b.Len(), err)
		}
		if size.Size != b.Len() || size.Max != c.MaxBatch() || size.Size <= size.Max {
			t.Errorf("got %+v for a batch of %d bytes and MaxBatch %d", *size, b.Len(), c.MaxBatch())
		}
		t.Logf("%d bytes in %d transactions of at most %d", b.Len(), load(t, c, table, n), c.MaxBatch())
	case err != nil:
		t.Fatalf("Commit of %d bytes: %v", b.Len(), err)
	default:
		t.Logf("%d bytes in one transaction", b.Len())
	}
	wantAll(t, c, table, n)
}

// The kernel must take a batch of MaxBatch bytes and refuse a longer one: the
// figure is neither too high nor too low.
func TestMaxBatchIsExact(t *testing.T) {
	enterNamespace(t)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newConn(fd, answerTimeout)
	if err != nil {
		t.Fatal(err)
	}
	testenv.CloseAtEnd(t, c)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 32<<10); err != nil {
		t.Fatal(err)
	}
	size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		t.Fatal(err)
	}
	c.max = size - bufferOverhead

	table := Table{Family: IPv4, Name: "abc"} // each message has 28 bytes
	var b Batch
	for b.Len()+2*28 <= c.max {
		b.AddTable(table, "")
	}
	table.Name = "abcdefghijklmnopqrstuvwxyz"[:3+c.max-b.Len()-28]
	b.AddTable(table, "")
	if b.Len() != c.max {
		t.Fatalf("the test made a batch of %d bytes, wants %d", b.Len(), c.max)
	}
	commit(t, c, &b)

	c.max += 4
	b.DelTable(Table{Family: IPv4, Name: "abc"})
	c.max = b.Len()
	if err := c.Commit(t.Context(), &b); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a batch of %d bytes for a buffer of %d: got %v, want EMSGSIZE", b.Len(), size, err)
	}
}

// A commit by another program while a dump is under way starts it again.
func TestDumpRestartsOnKernel(t *testing.T) {
	const n = 20_000
	c := openInNamespace(t)
	other := open(t)
	table := Table{Family: IPv4, Name: "vip"}
	load(t, c, table, n)

	for _, disturb := range []int{1, 3, maxTries} {
		begun, seen := 0, 0
		err := c.Elements(t.Context(), table, bigSet().Name, Visitor[Element]{
			Begin: func() { begun, seen = begun+1, 0 },
			Each: func(*Element) error {
				if seen++; seen > 1 || begun > disturb {
					return nil
				}
				var b Batch
				b.DestroyTable(Table{Family: IPv6, Name: "theirs"})
				return other.Commit(t.Context(), &b)
			},
		})
		wantBegun, want := disturb+1, error(nil)
		if disturb == maxTries {
			wantBegun, want = maxTries, ErrInterrupted
		}
		if begun != wantBegun || seen != n || !errors.Is(err, want) {
			t.Errorf("disturbed %d times: begun %d times, %d elements, error %v; want %d, %d, %v",
				disturb, begun, seen, err, wantBegun, n, want)
		}
	}
}

// A dump that is given up in the middle leaves the connection usable.
func TestDumpGivenUpOnKernel(t *testing.T) {
	const n = 20_000
	c := openInNamespace(t)
	table := Table{Family: IPv4, Name: "vip"}
	load(t, c, table, n)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		err := c.Elements(ctx, table, bigSet().Name, Visitor[Element]{Each: func(*Element) error {
			cancel()
			return nil
		}})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Elements, cancelled in the middle: got %v, want context.Canceled", err)
		}
		var b Batch
		b.AddChain(table, Chain{Name: "next"})
		commit(t, c, &b)
		wantAll(t, c, table, n)
	}
}

// Flush and delete leave nothing behind, however long the lists are.
func TestRemoveMany(t *testing.T) {
	const n = 20_000
	c := openInNamespace(t)
	table := Table{Family: IPv4, Name: "vip"}
	load(t, c, table, n)
	var b Batch
	var key, data [16]byte
	w := b.Elements(OpDelete, table, bigSet().Name)
	for i := n / 2; i < n; i++ {
		bigKey(key[:], data[:8], i)
		w.Key(key[:])
	}
	commit(t, c, &b)
	wantAll(t, c, table, n/2)
	b.Reset()
	b.FlushSet(table, bigSet().Name)
	commit(t, c, &b)
	wantAll(t, c, table, 0)
	b.Reset()
	b.DelSet(table, bigSet().Name)
	commit(t, c, &b)
	if sets := listSets(t, c, table); len(sets) != 0 {
		t.Errorf("after DelSet there are %d sets, want none", len(sets))
	}
}
