package ipset

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

func kinds() []Set {
	return []Set{
		{Name: "ip4", Type: HashIP},
		{Name: "ip6", Type: HashIP, IPv6: true},
		{Name: "port4", Type: HashIPPort, SkbInfo: true, MaxElem: 1 << 20},
		{Name: "port6", Type: HashIPPort, IPv6: true, SkbInfo: true},
		{Name: "portnet4", Type: HashIPPortNet},
		{Name: "portnet6", Type: HashIPPortNet, IPv6: true},
	}
}

// Sets are as they were wanted.
func TestCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, kinds()...)
	for _, s := range kinds() {
		have := w.info(t, s.Name)
		if d := have.differences(s); d != "" || have.Entries != 0 {
			t.Errorf("set %s: got differences %q in %+v, want none", s.Name, d, have)
		}
	}
	if list, err := w.Sets(t.Context(), "port"); err != nil || len(list) != 4 {
		t.Errorf("sets whose names begin with port: got %d, error %v, want 4", len(list), err)
	}
}

// info describes a set.
func (w world) info(t testing.TB, name string) Info {
	t.Helper()
	list, err := w.Sets(t.Context(), name)
	testenv.NoError(t, err)
	i := slices.IndexFunc(list, func(i Info) bool { return i.Name == name })
	if i < 0 {
		t.Fatalf("set %s: got %v, want it to be listed", name, list)
	}
	return list[i]
}

// Making the same sets again changes nothing, with few system calls.
func TestCreateAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, kinds()...)
	kept := Entry{Addr: addr("192.0.2.1")}
	w.do(t, additions("ip4", kept)...)
	before := w.Calls()
	w.create(t, kinds()...)
	// 3 types, one for all sets, and one for the comparison of each.
	if got, want := w.Calls()-before, uint64(3+1+len(kinds())); got != want {
		t.Errorf("system calls of Create for existing sets: got %d, want %d", got, want)
	}
	w.wantEntries(t, "ip4", kept)
}

// The program ipset sees the sets as they were wanted.
func TestProgramListsSets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, kinds()...)
	text := w.ipset(t, "", "list", "-t", "-o", "save")
	for _, want := range []string{
		"create ip4 hash:ip family inet hashsize 1024 maxelem 65536",
		"create port6 hash:ip,port family inet6 hashsize 1024 maxelem 65536 skbinfo",
		"create port4 hash:ip,port family inet hashsize 1024 maxelem 1048576 skbinfo",
		"create portnet6 hash:ip,port,net family inet6 hashsize 1024 maxelem 65536",
	} {
		if !strings.Contains(withoutBuckets(text), want+"\n") {
			t.Errorf("ipset list: got no line %q in\n%s", want, text)
		}
	}
}

// withoutBuckets removes the options that the kernel chooses.
func withoutBuckets(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		for i := 0; i < len(words); i++ {
			if words[i] == "bucketsize" || words[i] == "initval" {
				i++
				continue
			}
			b.WriteString(words[i] + " ")
		}
		text := strings.TrimSuffix(b.String(), " ")
		b.Reset()
		b.WriteString(text + "\n")
	}
	return b.String()
}

// A set that exists and differs is an error that names each difference, and does not prevent the
// others.
func TestCreateNamesDifferences(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ipset(t, strings.Join([]string{
		"create type hash:ip",
		"create family hash:ip,port family inet6",
		"create maxelem hash:ip,port maxelem 100",
		"create options hash:ip,port comment counters",
		"create timeout hash:ip timeout 60",
		"create netmask hash:ip netmask 24",
		"create force hash:ip,port forceadd",
		"create grown hash:ip hashsize 4096",
		"",
	}, "\n"), "restore")
	err := w.Create(t.Context(),
		Set{Name: "type", Type: HashIPPort},
		Set{Name: "family", Type: HashIPPort},
		Set{Name: "maxelem", Type: HashIPPort},
		Set{Name: "options", Type: HashIPPort, SkbInfo: true},
		Set{Name: "timeout", Type: HashIP},
		Set{Name: "netmask", Type: HashIP},
		Set{Name: "force", Type: HashIPPort},
		Set{Name: "grown", Type: HashIP},
		Set{Name: "new", Type: HashIP},
	)
	joined, _ := err.(interface{ Unwrap() []error })
	if joined == nil {
		t.Fatalf("got error %v, want several", err)
	}
	want := []string{
		"ipset: create set type: the set exists and differs: Type is hash:ip, want hash:ip,port",
		"ipset: create set family: the set exists and differs: IPv6 is true, want false",
		"ipset: create set maxelem: the set exists and differs: MaxElem is 100, want 65536",
		"ipset: create set options: the set exists and differs: SkbInfo is false, want true, it has comments, counters",
		"ipset: create set timeout: the set exists and differs: it has timeout 60",
		"ipset: create set netmask: the set exists and differs: it has netmask 24",
		"ipset: create set force: the set exists and differs: it has forceadd",
	}
	got := joined.Unwrap()
	if len(got) != len(want) {
		t.Errorf("got %d errors, want %d: %v", len(got), len(want), err)
	}
	for i := range min(len(got), len(want)) {
		if e, ok := errors.AsType[*Error](got[i]); !ok || e.Error() != want[i] || !errors.Is(e, ErrDiffers) {
			t.Errorf("got  %v\nwant %s", got[i], want[i])
		}
	}
	if list, err := w.Sets(t.Context(), "new"); err != nil || len(list) != 1 {
		t.Errorf("set new: got %v, error %v, want it to exist", list, err)
	}
}

// Invalid sets are refused, above all those without a name: the kernel would destroy all sets.
func TestInvalidSets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, Set{Name: "other", Type: HashIP})
	w.do(t, additions("other", Entry{Addr: addr("192.0.2.1")})...)
	long := strings.Repeat("x", 32)
	for _, s := range []Set{
		{Type: HashIP}, {Name: long, Type: HashIP}, {Name: "a\x00b", Type: HashIP}, {Name: "a"}, {Name: "a", Type: "hash:net"},
	} {
		if err := w.Create(t.Context(), s); err == nil {
			t.Errorf("Create %+v: got no error, want one", s)
		}
	}
	for _, name := range []string{"", long, "other\x00"} {
		for what, err := range map[string]error{
			"Destroy": w.Destroy(t.Context(), name),
			"Flush":   w.Flush(t.Context(), name),
			"Entries": w.Entries(t.Context(), name, func(Entry) error { return nil }),
		} {
			if e, ok := errors.AsType[*Error](err); !ok || e.Set != name {
				t.Errorf("%s of %q: got error %v, want one that names the set", what, name, err)
			}
		}
		failed, err := w.Do(t.Context(), additions(name, Entry{Addr: addr("192.0.2.2")}))
		if err != nil || len(failed) != 1 {
			t.Errorf("Do with set %q: got %v, error %v, want one failure", name, failed, err)
		}
	}
	w.wantEntries(t, "other", Entry{Addr: addr("192.0.2.1")})
	w.create(t, Set{Name: long[1:], Type: HashIP})
	if err := w.Destroy(t.Context(), long[1:]); err != nil {
		t.Error(err)
	}
}

// Destroying and flushing a missing set succeeds; a set that a rule uses stays, and is named, but
// can be flushed.
func TestDestroyAndFlush(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, Set{Name: "used", Type: HashIP}, Set{Name: "free", Type: HashIP})
	w.do(t, additions("used", Entry{Addr: addr("192.0.2.1")})...)
	iptables := netnstest.Program(t, "iptables")
	rule := []string{"INPUT", "-m", "set", "--match-set", "used", "dst"}
	if _, err := netnstest.Run(t, w.ns, "", iptables, append([]string{"-A"}, rule...)...); err != nil {
		t.Fatal(err)
	}
	list, err := w.Sets(t.Context(), "used")
	if err != nil || len(list) != 1 || list[0].Entries != 1 {
		t.Errorf("set that a rule uses: got %+v, error %v, want one entry", list, err)
	}
	err = w.Destroy(t.Context(), "missing", "used", "free")
	wantError(t, err, ErrInUse, "ipset: destroy set used: ")
	if errors.Is(err, ErrNotExist) {
		t.Errorf("Destroy of a missing set: got error %v, want none", err)
	}
	if err := w.Flush(t.Context(), "missing", "used"); err != nil {
		t.Errorf("Flush: got error %v, want none", err)
	}
	if list, err := w.Sets(t.Context(), ""); err != nil || len(list) != 1 || list[0].Entries != 0 {
		t.Errorf("sets: got %+v, error %v, want used, and no entries", list, err)
	}
	if _, err := netnstest.Run(t, w.ns, "", iptables, append([]string{"-D"}, rule...)...); err != nil {
		t.Fatal(err)
	}
	if err := w.Destroy(t.Context(), "used"); err != nil {
		t.Error(err)
	}
	wantError(t, w.Entries(t.Context(), "used", func(Entry) error { return nil }), ErrNotExist, "ipset: list set used: ")
}
