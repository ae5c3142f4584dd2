package ipset

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// world is a network namespace with a connection to its ipset.
type world struct {
	*Conn
	ns *netns.NS
}

func newWorld(t testing.TB) world {
	t.Helper()
	ns := netnstest.NewNS(t)
	return world{open(t, ns), ns}
}

func open(t testing.TB, ns *netns.NS) *Conn {
	t.Helper()
	return netnstest.Open(t, ns, func() (*Conn, error) {
		c, err := Open()
		if errors.Is(err, ErrUnsupported) {
			t.Error("the kernel has no ipset")
		}
		return c, err
	})
}

// ipset runs the program ipset.
func (w world) ipset(t testing.TB, input string, args ...string) string {
	t.Helper()
	out, err := netnstest.Run(t, w.ns, input, "ipset", args...)
	testenv.NoError(t, err)
	return out
}

func (w world) create(t testing.TB, sets ...Set) {
	t.Helper()
	testenv.NoError(t, w.Create(t.Context(), sets...))
}

// do carries out operations that must succeed.
func (w world) do(t testing.TB, ops ...Op) {
	t.Helper()
	failed, err := w.Do(t.Context(), ops)
	if err != nil || len(failed) > 0 {
		t.Fatalf("Do of %d: got error %v, %d failures %v, want none", len(ops), err, len(failed), failed[:min(3, len(failed))])
	}
}

func additions(set string, entries ...Entry) (ops []Op) {
	for _, e := range entries {
		ops = append(ops, Op{Set: set, Entry: e})
	}
	return ops
}

func deletions(set string, entries ...Entry) (ops []Op) {
	for _, e := range entries {
		ops = append(ops, Op{Set: set, Delete: true, Entry: e})
	}
	return ops
}

// entries returns the entries of a set.
func (w world) entries(t testing.TB, set string) []Entry {
	t.Helper()
	var all []Entry
	err := w.Entries(t.Context(), set, func(e Entry) error {
		all = append(all, e)
		return nil
	})
	testenv.NoError(t, err)
	return all
}

// wantEntries checks that a set has exactly some entries.
func (w world) wantEntries(t testing.TB, set string, want ...Entry) {
	t.Helper()
	missing := map[Entry]bool{}
	for _, e := range want {
		missing[e] = true
	}
	var more []Entry
	got := w.entries(t, set)
	for _, e := range got {
		if !missing[e] {
			more = append(more, e)
		}
		delete(missing, e)
	}
	if len(missing) > 0 || len(more) > 0 {
		t.Errorf("set %s: got %d entries, want %d; missing: %.500s, too many: %.500s", set, len(got), len(want), fmt.Sprint(slices.Collect(maps.Keys(missing))), fmt.Sprint(more))
	}
}

// numbered returns n entries of type hash:ip,port with different keys.
func numbered(n int) []Entry {
	all := make([]Entry, n)
	for i := range all {
		all[i] = Entry{Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Protocol: 6, Port: 80}
	}
	return all
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func wantError(t testing.TB, got error, want error, texts ...string) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("got error %v, want %v", got, want)
	}
	for _, text := range texts {
		if !strings.Contains(fmt.Sprint(got), text) {
			t.Errorf("got error %v, want one with %q", got, text)
		}
	}
}
