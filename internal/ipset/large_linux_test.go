package ipset

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

// More than 65,536 entries are kept and read, and updated and deleted.
func TestLargeSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, Set{Name: "a", Type: HashIPPort, MaxElem: 1 << 24, SkbInfo: true})
	all := numbered(200_000)
	for i := range all {
		all[i].Mark = uint32(i + 1)
	}
	w.do(t, additions("a", all...)...)
	w.wantEntries(t, "a", all...)
	if got := w.info(t, "a").Entries; got != len(all) {
		t.Errorf("number of entries: got %d, want %d", got, len(all))
	}
	ops := deletions("a", all[:150_000]...)
	for i := 150_000; i < len(all); i++ {
		all[i].Mark++
		ops = append(ops, additions("a", all[i])...)
	}
	w.do(t, ops...)
	w.wantEntries(t, "a", all[150_000:]...)
}

// At maxelem, additions fail with ErrFull, and all else succeeds in the same call: updates,
// deletions, other sets. After deletions there is room again.
func TestFullSet(t *testing.T) {
	t.Parallel()
	const limit = 100_000
	w := newWorld(t)
	w.create(t, // The small set is one part of the kernel's table, so that the limit is exact.
		Set{Name: "small", Type: HashIPPort, MaxElem: 50, SkbInfo: true},
		Set{Name: "large", Type: HashIPPort, MaxElem: limit},
		Set{Name: "other", Type: HashIPPort})
	all := numbered(limit + 5000)
	marked := slices.Clone(all[:50])
	for i := range marked {
		marked[i].Mark = 9
	}
	for _, step := range []struct {
		ops  []Op
		fail []int // indexes
		want []Entry
	}{
		{ops: additions("small", all[:49]...), want: all[:49]},
		{ops: additions("small", all[49], all[50], all[51]), fail: []int{1, 2}, want: all[:50]},
		{
			ops:  slices.Concat(additions("small", marked...), additions("small", all[60]), additions("other", all[0])),
			fail: []int{50}, want: marked,
		},
		{
			ops:  slices.Concat(additions("small", all[60]), additions("other", all[1]), deletions("small", all[:3]...), additions("small", all[61])),
			want: slices.Concat(marked[3:], all[61:62]),
			fail: []int{0},
		},
	} {
		failed, err := w.Do(t.Context(), step.ops)
		testenv.NoError(t, err)
		var got []int
		for _, f := range failed {
			wantError(t, f, ErrFull, "set small")
			got = append(got, f.Index)
		}
		if !slices.Equal(got, step.fail) {
			t.Errorf("failed operations: got %v, want %v", got, step.fail)
		}
		w.wantEntries(t, "small", step.want...)
	}
	w.wantEntries(t, "other", all[:2]...)

	// Up over the limit, together with another set; then down below it.
	failed, err := w.Do(t.Context(), slices.Concat(additions("large", all...), additions("other", all[2:100]...)))
	testenv.NoError(t, err)
	isFailed := map[int]bool{}
	for _, f := range failed {
		wantError(t, f, ErrFull, "set large", all[f.Index].String())
		isFailed[f.Index] = true
	}
	var want []Entry
	for i, e := range all {
		if !isFailed[i] {
			want = append(want, e)
		}
	}
	w.wantEntries(t, "large", want...)
	w.wantEntries(t, "other", all[:100]...)
	if len(want) < limit || len(want) > limit+limit/10 {
		t.Errorf("entries at the limit: got %d, want %d or somewhat more", len(want), limit)
	}
	w.do(t, slices.Concat(deletions("large", all[:10_000]...), deletions("other", all[:100]...))...)
	w.do(t, slices.Concat(additions("large", all[limit-1000:]...), additions("other", all[0]))...)
	w.wantEntries(t, "other", all[0])
}

// A listing returns the entries that stay exactly once while others come and go, and the set
// grows.
func TestListingDuringChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writer := open(t, w.ns)
	const stay = 5000
	all := numbered(60_000)
	w.create(t, Set{Name: "a", Type: HashIPPort, MaxElem: 1 << 20})
	w.do(t, additions("a", all[:stay]...)...)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- change(t.Context(), writer, all[stay:], stop) }()
	for range 20 {
		count := map[Entry]int{}
		err := w.Entries(t.Context(), "a", func(e Entry) error {
			count[e]++
			runtime.Gosched()
			return nil
		})
		testenv.NoError(t, err)
		for _, e := range all[:stay] {
			if count[e] != 1 {
				t.Fatalf("entry %v: got %d times, want once", e, count[e])
			}
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// change adds and deletes entries until stop is closed; each time the set grows again.
func change(ctx context.Context, c *Conn, entries []Entry, stop chan struct{}) error {
	for range 1000 {
		for _, ops := range [][]Op{additions("a", entries...), deletions("a", entries...)} {
			select {
			case <-stop:
				return nil
			default:
			}
			failed, err := c.Do(ctx, ops)
			if err != nil || len(failed) > 0 {
				return fmt.Errorf("%d failures: %w", len(failed), err)
			}
		}
	}
	return nil
}

// A new connection reads a set whose first bucket does not fit into the message that the kernel
// makes for a new socket: it lists the bucket as a whole.
func TestLongComments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all []Entry
	for i := range 12 { // as many as a bucket may have
		// The first entries of a listing are those of the first bucket.
		w.ipset(t, "", "create", "a", "hash:ip,port", "family", "inet6", "comment", "counters", "skbinfo", "hashsize", "64", "initval", "7")
		w.do(t, additions("a", sixes(250*i, 250)...)...)
		all = append(all, w.entries(t, "a")[0])
		testenv.NoError(t, w.Destroy(t.Context(), "a"))
	}
	restore := strings.Builder{}
	restore.WriteString("create a hash:ip,port family inet6 comment counters skbinfo hashsize 64 initval 7\n")
	for i := range all {
		fmt.Fprintf(&restore, "add a %v skbmark 0xffffffff comment %q\n", all[i], strings.Repeat("x", 255))
		all[i].Mark, all[i].Foreign = 1<<32-1, true
	}
	w.ipset(t, restore.String(), "restore")
	world{open(t, w.ns), w.ns}.wantEntries(t, "a", all...)
}

// sixes returns n entries with different IPv6 addresses, from a number on.
func sixes(from, n int) (all []Entry) {
	for i := range n {
		all = append(all, Entry{Addr: addr(fmt.Sprintf("2001:db8::%x", from+i)), Protocol: 17, Port: 53})
	}
	return all
}

// An error of the caller ends the listing, and the connection remains usable.
func TestEntriesStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, Set{Name: "a", Type: HashIPPort})
	w.do(t, additions("a", numbered(10_000)...)...)
	stop, n := errors.New("stop"), 0
	err := w.Entries(t.Context(), "a", func(Entry) error {
		n++
		return stop
	})
	if n != 1 {
		t.Errorf("entries before the error: got %d, want 1", n)
	}
	wantError(t, err, stop, "set a")
	w.wantEntries(t, "a", numbered(10_000)...)
}
