package nfnetlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

func TestDumpsMatchNft(t *testing.T) {
	for _, table := range testTables() {
		t.Run(table.Family.String(), func(t *testing.T) {
			c := openInNamespace(t)
			newBalancer(t, c, table)
			ctx := t.Context()

			var tables []TableInfo
			if err := c.Tables(ctx, table.Family, Collect(&tables)); err != nil {
				t.Fatal(err)
			}
			if len(tables) != 1 || tables[0].Name != "vip" || tables[0].Flags != 0 || tables[0].Comment() != "a load balancer" {
				t.Errorf("Tables: got %+v, want vip with its comment", tables)
			}

			var chains []ChainInfo
			if err := c.Chains(ctx, table, Collect(&chains)); err != nil {
				t.Fatal(err)
			}
			got := make(map[string]Chain)
			for _, ch := range chains {
				got[ch.Name] = Chain{Name: ch.Name, Base: ch.Base, Comment: ch.Comment()}
			}
			want := map[string]Chain{
				"pick-2":         {Name: "pick-2", Comment: "one of two"},
				"nat-prerouting": {Name: "nat-prerouting", Base: BaseChain{Type: "nat", Hook: Prerouting, Priority: -100}},
				"check":          {Name: "check", Base: BaseChain{Type: "filter", Hook: Forward, Priority: 5}, Comment: "late"},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Chains (-want +got):\n%s", diff)
			}

			var rules []RuleInfo
			if err := c.Rules(ctx, table, Collect(&rules)); err != nil {
				t.Fatal(err)
			}
			var ours []string
			for _, r := range rules {
				ours = append(ours, fmt.Sprintf("%d %q", r.Handle, udataText(r.Userdata, udataComment)))
			}
			if diff := cmp.Diff(nftRules(t, table), ours); diff != "" {
				t.Errorf("Rules, handle and comment (-nft +ours):\n%s", diff)
			}
		})
	}
}

// nftRules returns handle and comment of each rule as nft lists them.
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
		t.Fatalf("nft lists %d rules, want 4", len(found))
	}
	return found
}

// elem is an Element that can be kept and compared.
type elem struct {
	Key, KeyEnd, Data string
	Verdict           string
	End               bool
}

func keep(e *Element) elem {
	k := elem{Key: string(e.Key), KeyEnd: string(e.KeyEnd), Data: string(e.Data), End: e.IntervalEnd}
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
				return ErrInterrupted // the set is just growing
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

func TestDumpElements(t *testing.T) {
	for _, table := range testTables() {
		t.Run(table.Family.String(), func(t *testing.T) {
			c := openInNamespace(t)
			newBalancer(t, c, table)
			fam := table.Family
			vip := fam.addr("10.96.0.1", "fd00:96::1")
			endpoint := fam.addr("10.128.0.1", "fd00:128::1")
			port := func(n uint16) string { return string(concat(tcp, n)) }
			want := map[string]map[elem]bool{
				"services": {{Key: string(concat(vip, tcp, uint16(80))), Verdict: "-4 pick-2"}: true},
				"endpoints": {
					{Key: string(concat(vip, tcp, uint16(80), uint32(0))), Data: string(concat(endpoint, uint16(8080)))}: true,
					{Key: string(concat(vip, tcp, uint16(80), uint32(1))), Data: string(concat(endpoint, uint16(8081)))}: true,
				},
				"nodeports": {
					{Key: port(30080), Verdict: "-3 pick-2"}: true, {Key: port(30081), Verdict: "0 "}: true,
					{Key: port(30082), Verdict: "1 "}: true, {Key: port(30083), Verdict: "-5 "}: true,
				},
				"pods": {
					{Key: string(concat(fam.addr("10.128.0.0", "fd00:128::")))}:            true,
					{Key: string(concat(fam.addr("10.129.0.0", "fd00:129::"))), End: true}: true,
				},
				"by-source": {
					{Key: string(concat(fam.addr("192.0.2.0", "2001:db8::"))), Verdict: "-4 pick-2"}: true,
					{Key: string(concat(fam.addr("192.0.2.128", "2001:db8:8000::"))), End: true}:     true,
				},
				"allowed": {{
					Key:    string(concat(vip, tcp, uint16(80), fam.addr("192.0.2.0", "2001:db8::"))),
					KeyEnd: string(concat(vip, tcp, uint16(80), fam.addr("192.0.2.255", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"))),
				}: true},
				"affinity": {},
			}
			for set, want := range want {
				if diff := cmp.Diff(want, elements(t, c, table, set)); diff != "" {
					t.Errorf("Elements of %s (-want +got):\n%s", set, diff)
				}
			}
		})
	}
}

// Elements that a rule or a program added for a time show how long they live.
func TestDumpTimeouts(t *testing.T) {
	c := openInNamespace(t)
	table := Table{Family: IPv4, Name: "vip"}
	newBalancer(t, c, table)
	loadNft(t, `add element ip vip banned { 203.0.113.9 timeout 1h }
		add element ip vip affinity { 192.0.2.1 . 10.96.0.1 . tcp . 80 : 10.128.0.1 . 8080 }`)
	got := make(map[string]Element)
	for _, set := range []string{"banned", "affinity"} {
		err := c.Elements(t.Context(), table, set, Visitor[Element]{Each: func(e *Element) error {
			got[set+string(e.Key)] = Element{Timeout: e.Timeout, Expires: e.Expires}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, key string
		life      time.Duration
		own       bool
	}{
		{"of an element for ever", "banned" + string(concat("198.51.100.1")), 0, false},
		{"of an element with its own timeout", "banned" + string(concat("203.0.113.9")), time.Hour, true},
		{"of an element with the timeout of the set", "affinity" + string(concat("192.0.2.1", "10.96.0.1", tcp, uint16(80))), 3 * time.Hour, false},
	}
	for _, tt := range tests {
		e, ok := got[tt.key]
		if !ok {
			t.Errorf("life %s: the element was not dumped", tt.name)
			continue
		}
		if own := e.Timeout == tt.life && tt.life > 0; own != tt.own {
			t.Errorf("timeout %s: got %v of its own, want %v, %v", tt.name, e.Timeout, tt.life, tt.own)
		}
		if e.Expires > tt.life || tt.life-e.Expires > time.Minute {
			t.Errorf("life %s: got %v left, want nearly %v", tt.name, e.Expires, tt.life)
		}
	}
}

// What other programs put into their tables must not matter, in our tables nor
// when theirs are read.
func TestForeignTables(t *testing.T) {
	c := openInNamespace(t)
	ours := Table{Family: IPv4, Name: "vip"}
	theirs := Table{Family: IPv4, Name: "theirs"}
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
		addGarbage(t, c, theirs, fmt.Sprintf("g%d", i), udata)
	}

	for _, table := range []Table{ours, theirs} {
		for name, dump := range map[string]func() error{
			"Chains": func() error { return c.Chains(t.Context(), table, Collect(new([]ChainInfo))) },
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
		if got := elements(t, c, theirs, set); len(got) != want {
			t.Errorf("set %s: got elements %v, want %d", set, got, want)
		}
	}
	var chains []ChainInfo
	if err := c.Chains(t.Context(), ours, Collect(&chains)); err != nil || len(chains) != 3 {
		t.Errorf("chains of our table: got %d, %v, want 3, nil", len(chains), err)
	}
	var b Batch
	b.DelTable(ours)
	commit(t, c, &b)
}

// addGarbage adds a chain with a rule, and a set with an element, whose user
// data mean nothing.
func addGarbage(t *testing.T, c *Conn, table Table, name string, udata []byte) {
	t.Helper()
	var b Batch
	b.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, table, name)
	b.buf = appendBytes(b.buf, attrChainUserdata, udata)
	b.end()
	b.AddRule(table, name, []expr.Any{&expr.Counter{}}, nil)
	b.buf = appendBytes(b.buf, unix.NFTA_RULE_USERDATA, udata)
	b.end()
	b.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, table, name)
	b.appendSpec(&SetSpec{KeyType: 0x3fffffff, KeyLen: 4, Userdata: string(udata)}, 0)
	b.end()
	w := b.Elements(OpAdd, table, name)
	w.Key([]byte{1, 2, 3, 4})
	commit(t, c, &b)
}

func TestDumpOfNothing(t *testing.T) {
	c := openInNamespace(t)
	none := Table{Family: IPv4, Name: "none"}
	each := func(*Element) error { return errors.New("an element of nothing") }
	ctx := t.Context()
	tests := []struct {
		name string
		err  error
		want error
	}{
		{"Tables", c.Tables(ctx, IPv4, Collect(new([]TableInfo))), nil},
		{"Chains", c.Chains(ctx, none, Collect(new([]ChainInfo))), nil},
		{"Rules", c.Rules(ctx, none, Collect(new([]RuleInfo))), nil},
		{"Sets", c.Sets(ctx, none, Collect(new([]SetInfo))), unix.ENOENT},
		{"Elements", c.Elements(ctx, none, "s", Visitor[Element]{Each: each}), unix.ENOENT},
		{"long name", c.Elements(ctx, none, strings.Repeat("s", 256), Visitor[Element]{Each: each}), errName},
	}
	for _, tt := range tests {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s of nothing: got %v, want %v", tt.name, tt.err, tt.want)
		}
	}
}

func TestGeneration(t *testing.T) {
	c := openInNamespace(t)
	generation := func() uint32 {
		g, err := c.Generation(t.Context())
		if err != nil {
			t.Fatalf("Generation: %v", err)
		}
		return g
	}
	before := generation()
	if again := generation(); again != before {
		t.Errorf("without a commit the generation goes from %d to %d", before, again)
	}
	nft(t, "add", "table", "ip", "theirs")
	if after := generation(); after == before {
		t.Errorf("after a commit by nft the generation is still %d", after)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Generation(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("Generation with a cancelled context: got %v, want context.Canceled", err)
	}
}

// A visitor that ends a dump whose end was read with what it has seen leaves nothing to
// wait for. The kernel sends the end with an element for all keys.
func TestDumpEndedByVisitor(t *testing.T) {
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
		t.Errorf("got error %v after %d elements, want %v", err, seen, io.ErrNoProgress)
	}
	if c.dump != 0 {
		t.Error("the connection waits for the end of the dump, which it has read")
	}
}
