package nfnetlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestDumpsMatchNft(t *testing.T) {
	t.Parallel()
	for _, table := range testTables() {
		t.Run(table.Family.String(), func(t *testing.T) {
			c := openInNamespace(t)
			newBalancer(t, c, table)
			ctx := t.Context()

			var tables []TableInfo
			testenv.NoError(t, c.Tables(ctx, table.Family, Collect(&tables)))
			if len(tables) != 1 || tables[0].Name != "vip" || tables[0].Flags != 0 {
				t.Errorf("Tables: got %+v, want vip", tables)
			}

			var chains []Chain
			testenv.NoError(t, c.Chains(ctx, table, Collect(&chains)))
			got := make(map[string]Chain)
			for _, ch := range chains {
				got[ch.Name] = ch
			}
			want := map[string]Chain{
				"pick-2":         {Name: "pick-2"},
				"nat-prerouting": {Name: "nat-prerouting", Base: BaseChain{Type: "nat", Hook: Prerouting, Priority: -100}},
				"check":          {Name: "check", Base: BaseChain{Type: "filter", Hook: Forward, Priority: 5}},
			}
			testenv.Same(t, want, got, "Chains")

			var rules []RuleInfo
			testenv.NoError(t, c.Rules(ctx, table, Collect(&rules)))
			var ours []string
			for _, r := range rules {
				ours = append(ours, fmt.Sprintf("%d %q", r.Handle, strings.TrimSuffix(udataField(r.Userdata, udataComment), "\x00")))
			}
			if diff := cmp.Diff(nftRules(t, table), ours); diff != "" {
				t.Errorf("Rules, handle and comment (-nft +ours):\n%s", diff)
			}
		})
	}
}

// nftRules returns the handle and comment of each rule, as nft lists them.
func nftRules(t *testing.T, table Table) []string {
	t.Helper()
	rule := regexp.MustCompile(`^\t\t.*?(?: comment "(.*)")? # handle (\d+)$`)
	var found []string
	for line := range strings.Lines(nft(t, "-a", "list", "table", table.Family.String(), table.Name)) {
		if m := rule.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			found = append(found, fmt.Sprintf("%s %q", m[2], m[1]))
		}
	}
	if len(found) != 4 {
		t.Fatalf("rules that nft lists: got %d, want 4", len(found))
	}
	return found
}

// elem is an Element that can be kept and compared.
type elem struct {
	Key, Data string
	Verdict   string
	End       bool
}

func keep(e *Element) elem {
	k := elem{Key: string(e.Key), Data: string(e.Data), End: e.IntervalEnd}
	if e.HasVerdict {
		k.Verdict = fmt.Sprintf("%d %s", e.Verdict, e.Chain)
	}
	return k
}

// elements returns the elements of a set.
func elements(t testing.TB, c *Conn, table Table, set string) map[elem]bool {
	t.Helper()
	var got map[elem]bool
	err := c.Elements(context.Background(), table, set, Visitor[Element]{
		Begin: func() { got = make(map[elem]bool) },
		Each: func(e *Element) error {
			k := keep(e)
			if got[k] {
				return ErrInterrupted // the kernel is growing the set
			}
			got[k] = true
			return nil
		},
	})
	if err != nil {
		t.Fatalf("Elements of %s: %v", set, err)
	}
	return got
}

// The objects of other programs do not matter, neither for our tables nor when their
// tables are read.
func TestForeignTables(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	ours := Table{Family: IPv4, Name: "vip"}
	foreign := Table{Family: IPv4, Name: "theirs"}
	newBalancer(t, c, ours)
	loadNft(t, `
table ip theirs {
	counter hits { }
	quota much { over 25 mbytes }
	map objects { type ipv4_addr : counter; elements = { 192.0.2.1 : "hits" }; }
	set noted { type ipv4_addr; counter; comment "x"; elements = { 192.0.2.1 comment "y" }; }
	set catch-all { type ipv4_addr; elements = { 192.0.2.1, * }; }
	chain unusual {
		type filter hook prerouting priority mangle;
		limit rate 10/second burst 7 packets log prefix "a" group 2
		fib saddr . iif oif missing ct state new meta mark set jhash ip saddr mod 8
		tcp option maxseg size set 1000
		tcp dport 80 tproxy to :1234
	}
}
table inet theirs { set s { type inet_service; elements = { 80 }; }; }
table bridge vip { chain vip { }; }
`)
	garbage := [][]byte{{0}, {0, 255, 1}, {255, 0, 7, 1}, {7, 9, 'a'}, make([]byte, 200)}
	for i, udata := range garbage {
		addGarbage(t, c, foreign, fmt.Sprintf("g%d", i), udata)
	}

	for _, table := range []Table{ours, foreign} {
		for name, dump := range map[string]func() error{
			"Chains": func() error { return c.Chains(t.Context(), table, Collect(new([]Chain))) },
			"Rules":  func() error { return c.Rules(t.Context(), table, Collect(new([]RuleInfo))) },
			"Sets":   func() error { return c.Sets(t.Context(), table, Collect(new([]SetInfo))) },
			"Tables": func() error { return c.Tables(t.Context(), table.Family, Collect(new([]TableInfo))) },
		} {
			if err := dump(); err != nil {
				t.Errorf("%s of %v: %v", name, table, err)
			}
		}
	}
	for set, want := range map[string]int{"objects": 1, "noted": 1, "catch-all": 2, "g0": 1} {
		if got := elements(t, c, foreign, set); len(got) != want {
			t.Errorf("elements of set %s: got %v, want %d of them", set, got, want)
		}
	}
	var chains []Chain
	if err := c.Chains(t.Context(), ours, Collect(&chains)); err != nil || len(chains) != 3 {
		t.Errorf("chains of our table: got %d, %v, want 3, nil", len(chains), err)
	}
	var b Batch
	b.DelTable(ours)
	commit(t, c, &b)
}

// addGarbage adds a chain with a rule, and a set with an element. Chain, rule and set have
// malformed user data.
func addGarbage(t *testing.T, c *Conn, table Table, name string, udata []byte) {
	t.Helper()
	var b Batch
	b.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, table, name)
	b.buf = rawnetlink.AppendAttr(b.buf, 12, udata) // NFTA_CHAIN_USERDATA
	b.end()
	addRule(&b, table, name, []expr.Any{&expr.Counter{}})
	b.buf = rawnetlink.AppendAttr(b.buf, unix.NFTA_RULE_USERDATA, udata)
	b.end()
	b.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, table, name)
	b.appendSpec(&SetSpec{KeyType: 0x3fffffff, KeyLen: 4, Userdata: string(udata)})
	b.end()
	w := b.Elements(OpAdd, table, name)
	w.Key([]byte{1, 2, 3, 4})
	commit(t, c, &b)
}

func TestDumpOfNothing(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	none := Table{Family: IPv4, Name: "none"}
	each := func(*Element) error { return errors.New("an element of a set that does not exist") }
	ctx := t.Context()
	tests := []struct {
		name string
		err  error
		want error
	}{
		{"Tables", c.Tables(ctx, IPv4, Collect(new([]TableInfo))), nil},
		{"Chains", c.Chains(ctx, none, Collect(new([]Chain))), nil},
		{"Rules", c.Rules(ctx, none, Collect(new([]RuleInfo))), nil},
		{"Sets", c.Sets(ctx, none, Collect(new([]SetInfo))), unix.ENOENT},
		{"Elements", c.Elements(ctx, none, "s", Visitor[Element]{Each: each}), unix.ENOENT},
		{"long name", c.Elements(ctx, none, strings.Repeat("s", 256), Visitor[Element]{Each: each}), errName},
	}
	for _, tt := range tests {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s without objects: got %v, want %v", tt.name, tt.err, tt.want)
		}
	}
}

// Chain returns what a dump lists, and ENOENT for a chain that does not exist.
func TestChain(t *testing.T) {
	t.Parallel()
	for _, table := range testTables() {
		c := openInNamespace(t)
		newBalancer(t, c, table)
		var chains []Chain
		if err := c.Chains(t.Context(), table, Collect(&chains)); err != nil || len(chains) != 3 {
			t.Fatalf("%v: chains: got %+v and error %v, want three", table, chains, err)
		}
		for _, want := range chains {
			if got, err := c.Chain(t.Context(), table, want.Name); err != nil || got != want {
				t.Errorf("%v: Chain(%s): got %+v and error %v, want %+v", table, want.Name, got, err, want)
			}
		}
		missing := map[string]Table{"no-chain": table, "check": {Family: table.Family, Name: "no-table"}}
		for name, in := range missing {
			_, err := c.Chain(t.Context(), in, name)
			if refused, ok := errors.AsType[*Error](err); !ok || refused.Errno != unix.ENOENT || refused.Table != in || refused.Object != name {
				t.Errorf("%v: Chain(%s): got error %v, want ENOENT of %s", in, name, err, name)
			}
		}
		if id, err := c.Generation(t.Context()); err != nil || id == 0 {
			t.Errorf("%v: Generation after that: got %d and error %v, want a number", table, id, err)
		}
	}
}

// HasTable finds tables that exist.
func TestHasTable(t *testing.T) {
	t.Parallel()
	for _, table := range testTables() {
		c := openInNamespace(t)
		newBalancer(t, c, table)
		for _, in := range []Table{table, {Family: table.Family, Name: "no-table"}} {
			if found, err := c.HasTable(t.Context(), in); err != nil || found != (in == table) {
				t.Errorf("HasTable(%v): got %t and error %v, want %t", in, found, err, in == table)
			}
		}
	}
}

// If a visitor ends a dump whose end is in the same read, the connection does not wait for
// the end. The kernel sends the end together with a catch-all element.
func TestDumpEndedByVisitor(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	loadNft(t, "table ip web { set s { type ipv4_addr; elements = { 192.0.2.1, * } }; }")
	seen := 0
	err := c.Elements(t.Context(), Table{Family: IPv4, Name: "web"}, "s", Visitor[Element]{Each: func(e *Element) error {
		if seen++; e.Key != nil {
			return nil
		}
		return io.ErrNoProgress
	}})
	if !errors.Is(err, io.ErrNoProgress) || seen == 0 {
		t.Errorf("Elements: got error %v after %d elements, want %v after at least one", err, seen, io.ErrNoProgress)
	}
	if c.unread != 0 {
		t.Error("the connection still waits for the end of the dump, which it has read")
	}
}
