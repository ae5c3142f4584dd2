package nfnetlink

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
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

// bigIndex is the inverse of bigKey. It returns -1 for an element that bigKey does not
// write.
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
	b.AddTable(table)
	b.AddSet(table, bigSet())
	for i := 0; i < n; commits++ {
		i = fill(&b, table, span{i, n}, c.max)
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
			t.Fatalf("dumps of element %d: got %d, want 1", i, times)
		}
	}
	if got := listSets(t, c, table)[bigSet().Name].Count; got != n && got != -1 {
		t.Errorf("count of the kernel: got %d elements, want %d", got, n)
	}
}

// With privileges, 300,000 elements fit into one transaction. With the buffer of an
// unprivileged process, such a transaction is refused before it is sent, and several
// smaller ones are possible.
func TestHugeBatch(t *testing.T) {
	t.Parallel()
	const n = 300_000
	c := openInNamespace(t)
	table := Table{Family: IPv4, Name: "vip"}
	var b Batch
	b.AddTable(table)
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
		if size.Size != b.Len() || size.Max != c.max || size.Size <= size.Max {
			t.Errorf("SizeError: got %+v, want size %d and maximum %d", *size, b.Len(), c.max)
		}
		t.Logf("%d bytes in %d transactions of at most %d", b.Len(), load(t, c, table, n), c.max)
	case err != nil:
		t.Fatalf("Commit of %d bytes: %v", b.Len(), err)
	default:
		t.Logf("%d bytes in one transaction", b.Len())
	}
	wantAll(t, c, table, n)
}

// Conn.max is exact: the kernel accepts a batch of that many bytes and refuses a longer
// one.
func TestMaxBatchIsExact(t *testing.T) {
	t.Parallel()
	enterNamespace(t)
	c, err := Open()
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, c)
	testenv.NoError(t, unix.SetsockoptInt(c.socket.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 32<<10))
	size, err := unix.GetsockoptInt(c.socket.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF)
	testenv.NoError(t, err)
	c.max = size - bufferOverhead

	table := Table{Family: IPv4, Name: "abc"} // each message has 28 bytes
	var b Batch
	for b.Len()+2*28 <= c.max {
		b.AddTable(table)
	}
	table.Name = "abcdefghijklmnopqrstuvwxyz"[:3+c.max-b.Len()-28]
	b.AddTable(table)
	if b.Len() != c.max {
		t.Fatalf("length of the test's batch: got %d bytes, want %d", b.Len(), c.max)
	}
	commit(t, c, &b)

	b.DelTable(Table{Family: IPv4, Name: "abc"})
	c.max = b.Len()
	if err := c.Commit(t.Context(), &b); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a batch of %d bytes for a buffer of %d: got %v, want EMSGSIZE", b.Len(), size, err)
	}
}

// A commit by another program during a dump makes the dump start again.
func TestDumpRestartsOnKernel(t *testing.T) {
	t.Parallel()
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
			t.Errorf("interrupted %d times: got %d tries, %d elements, error %v; want %d, %d, %v",
				disturb, begun, seen, err, wantBegun, n, want)
		}
	}
}
