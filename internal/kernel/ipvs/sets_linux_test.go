package ipvs

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// world is a network namespace with a connection to its ipset.
type world struct {
	*Sets
	ns *netns.NS
}

func newWorld(t testing.TB) world {
	t.Helper()
	ns := netnstest.NewNS(t)
	return world{netnstest.Open(t, ns, OpenSets), ns}
}

// ipset runs the program ipset.
func (w world) ipset(t testing.TB, line string) string {
	t.Helper()
	program, err := exec.LookPath("ipset")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/ipset"); err != nil {
			testenv.CannotRun(t, "the program ipset is not installed")
		}
	}
	out, err := netnstest.Run(t, w.ns, "", program, strings.Fields(line)...)
	testenv.NoError(t, err)
	return out
}

// do carries out changes that must succeed.
func (w world) do(t testing.TB, ops ...SetOp) {
	t.Helper()
	failed, err := w.Do(ops)
	if err != nil || len(failed) > 0 {
		t.Fatalf("Do of %d: got error %v and %d failures, want none", len(ops), err, len(failed))
	}
}

// want requires that a set has exactly some entries.
func (w world) want(t testing.TB, when, set string, want ...Entry) {
	t.Helper()
	list, err := w.Entries(set)
	testenv.NoError(t, err)
	got, missing := map[Entry]bool{}, []Entry(nil)
	for _, e := range list {
		got[e] = true
	}
	for _, e := range want {
		if !got[e] {
			missing = append(missing, e)
		}
		delete(got, e)
	}
	if len(list) != len(want) || len(missing) > 0 || len(got) > 0 {
		t.Errorf("%s: set %s: got %d entries, want %d; missing: %.500v, too many: %.500v", when, set, len(list), len(want), missing, got)
	}
}

func additions(set string, entries ...Entry) (ops []SetOp) {
	for _, e := range entries {
		ops = append(ops, SetOp{Set: set, Entry: e})
	}
	return ops
}

func deletions(ops []SetOp) []SetOp {
	ops = slices.Clone(ops)
	for i := range ops {
		ops[i].Delete = true
	}
	return ops
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// Entries of all types are read as they were written, and the program ipset reads the same.
func TestEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	four, six := addr("192.0.2.1"), addr("2001:db8::1")
	for _, c := range []struct {
		typ     string
		marked  bool
		entries []Entry
		text    []string
	}{
		{"hash:ip", false, []Entry{{Addr: four}, {Addr: addr("255.255.255.255")}}, []string{"192.0.2.1"}},
		{"hash:ip", false, []Entry{{Addr: six}, {Addr: addr("::1")}}, []string{"2001:db8::1"}},
		{"hash:ip,port", true, []Entry{
			{Addr: four, Protocol: 6, Port: 80, Mark: 1}, {Addr: four, Protocol: 17, Port: 80, Mark: 1<<32 - 1},
			{Addr: four, Protocol: 132, Port: 65535},
		}, []string{"192.0.2.1,tcp:80 skbmark 0x1", "192.0.2.1,udp:80 skbmark 0xffffffff", "192.0.2.1,sctp:65535"}},
		{"hash:ip,port", true, []Entry{{Addr: six, Protocol: 6, Port: 80, Mark: 0x4000}}, []string{"2001:db8::1,tcp:80 skbmark 0x4000"}},
		{"hash:ip,port,net", false, []Entry{
			{Addr: four, Protocol: 6, Port: 80, Net: netip.MustParsePrefix("128.0.0.0/1")},
			{Addr: four, Protocol: 6, Port: 80, Net: netip.MustParsePrefix("192.0.2.9/32")},
		}, []string{"192.0.2.1,tcp:80,128.0.0.0/1", "192.0.2.1,tcp:80,192.0.2.9"}},
		{"hash:ip,port,net", false, []Entry{
			{Addr: six, Protocol: 17, Port: 53, Net: netip.MustParsePrefix("8000::/1")},
			{Addr: six, Protocol: 17, Port: 53, Net: netip.MustParsePrefix("2001:db8::2/128")},
		}, []string{"2001:db8::1,udp:53,8000::/1"}},
	} {
		const set = "set"
		testenv.NoError(t, w.Create(Set{Name: set, Type: c.typ, IPv6: c.entries[0].Addr.Is6(), Marked: c.marked, Limit: 1000}))
		for range 2 { // adding what exists succeeds
			w.do(t, additions(set, c.entries...)...)
			w.want(t, "added to "+c.typ, set, c.entries...)
		}
		text := w.ipset(t, "save")
		for _, line := range c.text {
			if !strings.Contains(text, "add set "+line+"\n") {
				t.Errorf("ipset save: got no entry %q in\n%s", line, text)
			}
		}
		for range 2 { // deleting what is missing succeeds
			w.do(t, deletions(additions(set, c.entries...))...)
			w.want(t, "deleted from "+c.typ, set)
		}
		testenv.NoError(t, w.Destroy(set))
	}
}

// What another program has given to an entry is seen, and adding the entry removes it.
func TestForeignEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.NoError(t, w.Create(Set{Name: "marks", Type: "hash:ip,port", Marked: true, Limit: 1000}))
	e := Entry{Addr: addr("192.0.2.1"), Protocol: 6, Port: 80, Mark: 7}
	for _, foreign := range []string{"skbmark 0x7/0xff", "skbmark 0x0/0xffffffff", "skbprio 1:2", "skbqueue 3", "skbmark 0x7 skbqueue 3"} {
		w.ipset(t, "-exist add marks 192.0.2.1,tcp:80 "+foreign)
		if got, err := w.Entries("marks"); err != nil || len(got) != 1 || !got[0].Foreign {
			t.Errorf("entry with %s: got %+v, error %v, want Foreign", foreign, got, err)
		}
		w.do(t, SetOp{Set: "marks", Entry: e})
		w.want(t, "after "+foreign, "marks", e)
	}
}

// Many entries of several sets, among which the kernel refuses some: all others are carried out, and
// each refusal has its index and says why.
func TestRefusedEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"a", "b"} {
		testenv.NoError(t, w.Create(Set{Name: name, Type: "hash:ip,port", Limit: 1 << 20}))
	}
	var ops []SetOp
	var good []Entry
	bad := map[int]string{7: "b", 3*batch + 11: "missing"}
	for i := range 4*batch + 3 {
		o := SetOp{Set: []string{"a", "b"}[i%2], Entry: Entry{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Protocol: 6, Port: 80}}
		switch set := bad[i]; {
		case set == "missing":
			o.Set = set
		case set != "":
			o.Entry.Mark = 1 // which the set has no room for
		case o.Set == "a":
			good = append(good, o.Entry)
		}
		ops = append(ops, o)
	}
	failed, err := w.Do(ops)
	testenv.NoError(t, err)
	if len(failed) != len(bad) {
		t.Errorf("got %d failures, want %d", len(failed), len(bad))
	}
	for i, err := range failed {
		if set := bad[i]; set == "" || !strings.Contains(err.Error(), "set "+set) || errors.Is(err, ErrNotExist) != (set == "missing") {
			t.Errorf("failure %d: got %v, want one of %v", i, err, bad)
		}
	}
	w.want(t, "after refusals", "a", good...)
	if got, err := w.Entries("b"); err != nil || len(got) != 2*batch-1+len(bad)%2 {
		t.Errorf("set b: got %d entries, error %v, want %d", len(got), err, 2*batch-1)
	}
}

// A set that exists with the same options is one, another one is an error.
func TestCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.NoError(t, w.Create(Set{Name: "same", Type: "hash:ip,port", Marked: true, Limit: 1000}))
	kept := Entry{Addr: addr("192.0.2.1"), Protocol: 6, Port: 80, Mark: 3}
	w.do(t, SetOp{Set: "same", Entry: kept})
	testenv.NoError(t, w.Create(Set{Name: "same", Type: "hash:ip,port", Marked: true, Limit: 1000}))
	w.want(t, "made again", "same", kept)
	for _, line := range []string{
		"hash:ip,port skbinfo maxelem 999", "hash:ip skbinfo maxelem 1000", "hash:ip,port maxelem 1000",
		"hash:ip,port skbinfo comment maxelem 1000", "hash:ip,port skbinfo maxelem 1000 timeout 5",
	} {
		w.ipset(t, "create other "+line)
		if err := w.Create(Set{Name: "other", Type: "hash:ip,port", Marked: true, Limit: 1000}); !errors.Is(err, ErrDiffers) {
			t.Errorf("beside %s: got error %v, want %v", line, err, ErrDiffers)
		}
		testenv.NoError(t, w.Destroy("other"))
	}
	if err := w.Create(Set{Name: "other", Type: "hash:nothing", Limit: 1000}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("of an unknown type: got error %v, want %v", err, ErrUnsupported)
	}
}

// A set that is used stays. A set that is missing does not matter.
func TestSets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.NoError(t, w.Create(Set{Name: "a", Type: "hash:ip", Limit: 1000}))
	w.ipset(t, "create c list:set")
	w.ipset(t, "add c a")
	if err := w.Destroy("a"); err == nil || !strings.Contains(err.Error(), "destroy set a: a rule, a set or a listing uses it") {
		t.Errorf("Destroy of a set that another one refers to: got error %v, want one that says so", err)
	}
	w.do(t, SetOp{Set: "a", Entry: Entry{Addr: addr("192.0.2.1")}})
	testenv.NoError(t, w.Flush("a"))
	w.want(t, "flushed", "a")
	for what, err := range map[string]error{"Flush": w.Flush("none"), "Destroy": w.Destroy("none")} {
		if err != nil {
			t.Errorf("%s of a missing set: got error %v, want none", what, err)
		}
	}
	if _, err := w.Entries("none"); !errors.Is(err, ErrNotExist) {
		t.Errorf("Entries of a missing set: got error %v, want %v", err, ErrNotExist)
	}
	w.ipset(t, "create d hash:ip maxelem 1 hashsize 1")
	failed, err := w.Do(additions("d", func() (all []Entry) {
		for i := range 1000 {
			all = append(all, Entry{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})})
		}
		return all
	}()...))
	testenv.NoError(t, err)
	if len(failed) == 0 {
		t.Error("a full set: got no failures, want some")
	}
	for i, err := range failed {
		if !strings.Contains(err.Error(), "it is full") {
			t.Errorf("failure %d at a full set: got %v, want one that says that it is full", i, err)
		}
	}
}

// A list that needs several messages is complete.
func TestLongSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.NoError(t, w.Create(Set{Name: "long", Type: "hash:ip,port", Marked: true, Limit: 1 << 20}))
	var all []Entry
	for i := range 20_000 {
		all = append(all, Entry{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Protocol: 6, Port: 80, Mark: uint32(i)})
	}
	w.do(t, additions("long", all...)...)
	w.want(t, "added", "long", all...)
}

// Malformed messages cause no panic.
func FuzzParseEntry(f *testing.F) {
	o := SetOp{Entry: Entry{Addr: addr("192.0.2.1"), Protocol: 6, Port: 80, Net: netip.MustParsePrefix("10.0.0.0/8"), Mark: 7}}
	f.Add(o.data().Serialize()[unix.SizeofRtAttr:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := parseEntry(b); err == nil && e.Addr.IsValid() && !e.Foreign && e.Addr.Is4() {
			again, err := parseEntry((&SetOp{Entry: e}).data().Serialize()[unix.SizeofRtAttr:])
			if err != nil || again != e && e.Net.IsValid() && e.Protocol != 0 {
				t.Errorf("entry %+v: written and read, got %+v, error %v", e, again, err)
			}
		}
	})
}

// An answer of another program makes package netlink panic with an error that is no errno. It is an error.
func TestForeignAnswer(t *testing.T) {
	err := guarded(func() error { panic("interface conversion") })
	if err == nil || !strings.Contains(err.Error(), "interface conversion") {
		t.Errorf("got error %v, want one with the cause", err)
	}
}
