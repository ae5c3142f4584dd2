package ipset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testenv"
)

// samples has entries for each of kinds.
func samples() map[string][]Entry {
	return map[string][]Entry{
		"ip4": {{Addr: addr("192.0.2.1")}, {Addr: addr("255.255.255.255")}},
		"ip6": {{Addr: addr("2001:db8::1")}, {Addr: addr("::1")}, {Addr: addr("::ffff:192.0.2.1")}},
		"port4": {
			{Addr: addr("192.0.2.1"), Protocol: unix.IPPROTO_TCP, Port: 80, Mark: 1},
			{Addr: addr("192.0.2.1"), Protocol: unix.IPPROTO_UDP, Port: 80, Mark: 1<<32 - 1},
			{Addr: addr("192.0.2.1"), Protocol: unix.IPPROTO_SCTP, Port: 65535},
			{Addr: addr("192.0.2.2"), Protocol: unix.IPPROTO_TCP, Port: 0},
		},
		"port6": {
			{Addr: addr("2001:db8::1"), Protocol: unix.IPPROTO_TCP, Port: 80, Mark: 0x4000},
			{Addr: addr("2001:db8::1"), Protocol: unix.IPPROTO_SCTP, Port: 80},
		},
		"portnet4": {
			{Addr: addr("192.0.2.1"), Protocol: unix.IPPROTO_TCP, Port: 80, Net: prefix("0.0.0.0/1")},
			{Addr: addr("192.0.2.1"), Protocol: unix.IPPROTO_TCP, Port: 80, Net: prefix("128.0.0.0/1")},
			{Addr: addr("192.0.2.1"), Protocol: unix.IPPROTO_TCP, Port: 81, Net: prefix("10.0.0.0/8")},
			{Addr: addr("192.0.2.1"), Protocol: unix.IPPROTO_TCP, Port: 81, Net: prefix("192.0.2.9/32")},
		},
		"portnet6": {
			{Addr: addr("2001:db8::1"), Protocol: unix.IPPROTO_UDP, Port: 53, Net: prefix("8000::/1")},
			{Addr: addr("2001:db8::1"), Protocol: unix.IPPROTO_UDP, Port: 53, Net: prefix("2001:db8::2/128")},
		},
	}
}

// All entries of all types are read as they were written, and the program ipset reads the same. It restores
// what it saves.
func TestEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, kinds()...)
	for set, entries := range samples() {
		w.do(t, additions(set, entries...)...)
		w.wantEntries(t, set, entries...)
	}
	text := w.ipset(t, "", "list", "-o", "save")
	for _, want := range []string{
		"add ip4 192.0.2.1\n",
		"add port4 192.0.2.1,tcp:80 skbmark 0x1\n",
		"add port4 192.0.2.1,udp:80 skbmark 0xffffffff\n",
		"add port6 2001:db8::1,tcp:80 skbmark 0x4000\n",
		"add portnet4 192.0.2.1,tcp:81,10.0.0.0/8\n",
		"add portnet4 192.0.2.1,tcp:80,128.0.0.0/1\n",
		"add portnet4 192.0.2.1,tcp:81,192.0.2.9\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("ipset list: got no line %q in\n%s", want, text)
		}
	}
	other := newWorld(t)
	other.ipset(t, text, "restore")
	for set, entries := range samples() {
		other.wantEntries(t, set, entries...)
		for _, e := range entries {
			if set == "ip6" && e.Addr.Is4In6() {
				continue // the program prints it in a form that String does not
			}
			if !strings.Contains(text, fmt.Sprintf("add %s %v", set, e)) {
				t.Errorf("ipset list: got no entry %v of %s in\n%s", e, set, text)
			}
		}
		other.do(t, deletions(set, entries...)...)
		other.wantEntries(t, set)
	}
}

// Adding what exists and deleting what does not exist succeed, and adding gives an entry its
// new mark, and takes away what another program has given to it.
func TestOperationsAreIdempotent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, Set{Name: "a", Type: HashIPPort, SkbInfo: true}, Set{Name: "n", Type: HashIPPortNet})
	one := numbered(1)[0]
	marked := one
	marked.Mark = 7
	for _, e := range []Entry{one, marked, marked, one} {
		w.do(t, additions("a", e)...)
		w.wantEntries(t, "a", e)
	}
	for _, foreign := range []string{"skbmark 0x7/0xff", "skbmark 0x0/0xffffffff", "skbprio 1:2", "skbqueue 3", "skbmark 0x7 skbqueue 3"} {
		w.ipset(t, "", append([]string{"-exist", "add", "a", one.String()}, strings.Fields(foreign)...)...)
		if got := w.entries(t, "a"); len(got) != 1 || !got[0].Foreign {
			t.Errorf("entry with %s: got %+v, want Foreign", foreign, got)
		}
		w.do(t, additions("a", marked)...)
		w.wantEntries(t, "a", marked)
	}
	net := one
	net.Net = prefix("10.0.0.0/8")
	w.ipset(t, "", "add", "n", net.String(), "nomatch")
	if got := w.entries(t, "n"); len(got) != 1 || !got[0].Foreign {
		t.Errorf("entry with nomatch: got %+v, want Foreign", got)
	}
	w.do(t, additions("n", net)...)
	w.wantEntries(t, "n", net)
	for range 2 {
		w.do(t, deletions("a", marked)...)
		w.wantEntries(t, "a")
	}
}

// wrong are operations that fail, with a part of the error.
func wrong() []struct {
	op   Op
	text string
	is   error
} {
	tcp := numbered(1)[0]
	with := func(change func(e *Entry)) Entry {
		e := tcp
		change(&e)
		return e
	}
	return []struct {
		op   Op
		text string
		is   error
	}{
		{Op{Set: "missing", Entry: tcp}, "add 10.0.0.0,tcp:80, set missing: ", ErrNotExist},
		{Op{Set: "missing", Entry: tcp, Delete: true}, "delete 10.0.0.0,tcp:80, set missing: ", ErrNotExist},
		{Op{Set: "ip4", Entry: tcp}, "does not suit", nil},
		{Op{Set: "ip4", Entry: Entry{Addr: addr("::1")}}, "set ip4: ", nil},
		{Op{Set: "ip4", Entry: Entry{Addr: addr("192.0.2.7"), Mark: 1}}, "has no marks", nil},
		{Op{Set: "ip6", Entry: Entry{Addr: addr("2001:db8::7%eth0")}}, "zone", nil},
		{Op{Set: "ip6", Entry: Entry{Addr: addr("192.0.2.7")}}, "set ip6: ", nil},
		{Op{Set: "ip4", Entry: Entry{}}, "no Addr", nil},
		{Op{Set: "port4", Entry: Entry{Addr: addr("192.0.2.7")}}, "does not suit", nil},
		{Op{Set: "port4", Entry: Entry{Addr: addr("192.0.2.7"), Port: 80}}, "no Protocol", nil},
		{Op{Set: "port4", Entry: Entry{Protocol: 6, Port: 80}}, "no Addr", nil},
		{Op{Set: "portnet4", Entry: with(func(e *Entry) { e.Net = prefix("0.0.0.0/0") })}, "two halves", nil},
		{Op{Set: "portnet4", Entry: with(func(e *Entry) { e.Net = prefix("10.0.0.1/8") })}, "want 10.0.0.0/8", nil},
		{Op{Set: "portnet4", Entry: with(func(e *Entry) { e.Net = prefix("2001:db8::/32") })}, "families of Net", nil},
		{Op{Set: "portnet4", Entry: with(func(e *Entry) { e.Net = netip.PrefixFrom(tcp.Addr, 33) })}, "invalid Net", nil},
		{Op{Set: "port4", Entry: with(func(e *Entry) { e.Net = prefix("10.0.0.0/8") })}, "does not suit", nil},
	}
}

// mistake is a wrong operation at an index of a list.
type mistake struct {
	index int
	text  string
	is    error
}

func (m mistake) matches(f *Error, ops []Op) bool {
	return f.Index == m.index && f.Set == ops[m.index].Set && f.Entry == ops[m.index].Entry &&
		strings.Contains(f.Error(), m.text) && (m.is == nil || errors.Is(f, m.is))
}

// someWrong returns random operations with the samples as a result, and the mistakes in them.
func someWrong(random *rand.Rand) (ops []Op, mistakes []mistake) {
	for set, entries := range samples() {
		if random.IntN(3) == 0 {
			ops = append(ops, additions("many", numbered(random.IntN(5000))...)...)
		}
		for range random.IntN(3) {
			w := wrong()[random.IntN(len(wrong()))]
			mistakes = append(mistakes, mistake{index: len(ops), text: w.text, is: w.is})
			ops = append(ops, w.op)
		}
		ops = append(ops, additions(set, entries...)...)
		if random.IntN(2) == 0 {
			ops = append(ops, deletions(set, entries[0])...)
			ops = append(ops, additions(set, entries[0])...)
		}
	}
	return ops, mistakes
}

// Whatever is wrong among many operations, and wherever, only that fails, with an error that
// names set, entry and index.
func TestWrongOperationsFailAlone(t *testing.T) {
	t.Parallel()
	random := testenv.Random(t)
	for range 20 {
		w := newWorld(t)
		w.create(t, append(kinds(), Set{Name: "many", Type: HashIPPort})...)
		ops, mistakes := someWrong(random)
		failed, err := w.Do(t.Context(), ops)
		if err != nil || len(failed) != len(mistakes) {
			t.Errorf("Do of %d: got %d failures, error %v, want %d failures", len(ops), len(failed), err, len(mistakes))
		}
		for i := range min(len(failed), len(mistakes)) {
			if !mistakes[i].matches(failed[i], ops) {
				t.Errorf("operation %d: got error %v, want %+v, %+v", failed[i].Index, failed[i], mistakes[i], ops[mistakes[i].index])
			}
		}
		for set, entries := range samples() {
			w.wantEntries(t, set, entries...)
		}
		most := 0
		for _, o := range ops {
			if o.Set == "many" {
				most = max(most, int(o.Entry.Addr.As4()[3])+int(o.Entry.Addr.As4()[2])<<8+1)
			}
		}
		w.wantEntries(t, "many", numbered(most)...)
	}
}

// The sets hold what the operations say, whatever their order and number.
func TestRandomOperations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	random := testenv.Random(t)
	sets := []Set{{Name: "a", Type: HashIPPort, SkbInfo: true}, {Name: "b", Type: HashIPPort, SkbInfo: true}}
	w.create(t, sets...)
	model := map[string]map[Entry]Entry{"a": {}, "b": {}} // by key
	keys := numbered(3000)
	for range 30 {
		var ops []Op
		for range random.IntN(5) {
			set, del := sets[random.IntN(2)].Name, random.IntN(3) == 0
			for range random.IntN(3) * random.IntN(1500) {
				o := Op{Set: set, Delete: del, Entry: keys[random.IntN(len(keys))]}
				if !del && random.IntN(2) == 0 {
					o.Entry.Mark = random.Uint32()
				}
				ops = append(ops, o)
			}
			for range random.IntN(20) {
				ops = append(ops, Op{Set: sets[random.IntN(2)].Name, Delete: random.IntN(2) == 0, Entry: keys[random.IntN(len(keys))]})
			}
		}
		for _, o := range ops {
			key := o.Entry
			key.Mark = 0
			if delete(model[o.Set], key); !o.Delete {
				model[o.Set][key] = o.Entry
			}
		}
		w.do(t, ops...)
		for set, entries := range model {
			var want []Entry
			for e := range maps.Values(entries) {
				want = append(want, e)
			}
			w.wantEntries(t, set, want...)
		}
	}
}

// Sets of other types and entries with comments, which other programs have made, are read.
func TestForeignSets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ipset(t, strings.Join([]string{
		"create ports bitmap:port range 0-65535",
		"add ports 30000",
		"create pairs hash:ip,port,ip",
		"add pairs 192.0.2.1,tcp:80,192.0.2.2",
		"create described hash:ip comment counters",
		`add described 192.0.2.1 comment "text" packets 5`,
		"add described 192.0.2.2",
		"",
	}, "\n"), "restore")
	w.wantEntries(t, "ports", Entry{Port: 30_000})
	w.wantEntries(t, "pairs", Entry{Addr: addr("192.0.2.1"), Protocol: unix.IPPROTO_TCP, Port: 80, Net: prefix("192.0.2.2/32")})
	described := Entry{Addr: addr("192.0.2.1"), Foreign: true}
	w.wantEntries(t, "described", described, Entry{Addr: addr("192.0.2.2")})
	w.do(t, additions("described", described)...) // which removes the comment
	w.wantEntries(t, "described", Entry{Addr: addr("192.0.2.1")}, Entry{Addr: addr("192.0.2.2")})
}

// A large addition takes few system calls: two lists of at most 60,000 bytes in each.
func TestSystemCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, Set{Name: "a", Type: HashIPPort}, Set{Name: "b", Type: HashIPPort})
	for _, c := range []struct {
		ops  []Op
		want uint64
	}{
		{nil, 0},
		{additions("a", numbered(1)...), 1},
		{additions("a", numbered(2000)...), 1},
		{additions("a", numbered(20_000)...), 6},
		{append(additions("a", numbered(700)...), deletions("b", numbered(700)...)...), 1},
	} {
		before := w.Calls()
		w.do(t, c.ops...)
		if got := w.Calls() - before; got != c.want {
			t.Errorf("system calls for %d operations: got %d, want %d", len(c.ops), got, c.want)
		}
	}
	var ops []Op
	for _, e := range numbered(maxMessages + 1) {
		ops = append(ops, additions("a", e)...)
		ops = append(ops, deletions("b", e)...)
	}
	before := w.Calls()
	w.do(t, ops...)
	if got := w.Calls() - before; got != 3 {
		t.Errorf("system calls for %d messages: got %d, want 3", len(ops), got)
	}
	// What is sent before an answer is read must be one system call.
	if next, _ := w.window.fill(ops, 0, nil); next != maxMessages {
		t.Errorf("operations of a window with a message for each: got %d, want %d", next, maxMessages)
	}
}

// With an ended context nothing is sent.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, Set{Name: "a", Type: HashIPPort})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Do(ctx, additions("a", numbered(3)...)); !errors.Is(err, context.Canceled) {
		t.Errorf("Do: got error %v, want %v", err, context.Canceled)
	}
	w.wantEntries(t, "a")
	for what, err := range map[string]error{
		"Create":  w.Create(ctx, Set{Name: "b", Type: HashIP}),
		"Destroy": w.Destroy(ctx, "a"),
		"Entries": w.Entries(ctx, "a", func(Entry) error { return nil }),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got error %v, want %v", what, err, context.Canceled)
		}
	}
	if list, err := w.Sets(t.Context(), ""); err != nil || len(list) != 1 {
		t.Errorf("sets: got %v, error %v, want a", list, err)
	}
}
