package xtables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testenv"
)

const portals = `-m comment --comment "kubernetes service portals" -j VIPKIT-SERVICES`

// A jump after a foreign rule that ends the traversal of all packets is unreachable, with all
// its duplicates, and is replaced by one in front. A hidden rule, which iptables prints
// wrongly, does not count.
func TestUnreachableJumps(t *testing.T) {
	t.Parallel()
	n := newNames("vipkit")
	ref := chainRef{NAT, "PREROUTING"}
	for _, c := range []struct {
		what   string
		rules  []string
		hidden map[chainRef]hiddenRules
		want   []Op
	}{
		{"in front", []string{portals, "-j ACCEPT"}, nil, nil},
		{"after rules for some packets", []string{"-s 192.0.2.0/24 -j ACCEPT", "-j OTHER", portals}, nil, nil},
		{"after a rule for all packets", []string{"-j ACCEPT", portals}, nil, written(t, "= nat PREROUTING < "+portals)},
		{"after a rule for all packets, twice", []string{portals, "-g OTHER", portals}, nil, written(t, "= nat PREROUTING < "+portals)},
		{"another one after a rule for all packets", []string{portals, "-m comment --comment x -j RETURN", "-j VIPKIT-SERVICES"}, nil, written(t, "- nat PREROUTING < -j VIPKIT-SERVICES")},
		{"hidden", []string{portals, "-j ACCEPT"}, map[chainRef]hiddenRules{ref: {2, []int{0}}}, written(t, "+ nat PREROUTING < "+portals)},
		{"after a hidden rule", []string{"-j ACCEPT", portals}, map[chainRef]hiddenRules{ref: {2, []int{0}}}, nil},
	} {
		l := newListing(n, c.hidden)
		text := "*nat\n:VIPKIT-SERVICES - [0:0]\n-A PREROUTING " + strings.Join(c.rules, "\n-A PREROUTING ") + "\nCOMMIT\n"
		if _, err := l.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		found, unreachable, err := l.end()
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		copies := strings.Count(text, portals)
		if len(c.want) == 1 && c.want[0].Kind == backends.Replace {
			c.want[0].Value = strings.Repeat(portals+"\n", copies)
		}
		requested := written(t, "+ nat VIPKIT-SERVICES", "+ nat PREROUTING < "+portals)
		got := newAdoption(n, found, unreachable, requested).plan(requested)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(Key{})); diff != "" {
			t.Errorf("%s: operations (-want +got):\n%s", c.what, diff)
		}
		m := model{ref: c.rules, {NAT, "VIPKIT-SERVICES"}: nil}
		if err := m.restore(string(scriptOf(t, got).text)); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	l := newListing(n, map[chainRef]hiddenRules{ref: {2, []int{0}}})
	if _, err := l.Write([]byte("*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.end(); err == nil {
		t.Error("with fewer rules than in nf_tables: got no error, want one")
	}
}

func TestEndsTraversal(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]bool{
		"-j ACCEPT": true, "-j RETURN": true, "-g OTHER": true, `-m comment --comment "a b" -j DROP`: true, "-m comment --comment a -m comment --comment b -j DROP": true,
		"-j DNAT --to-destination 192.0.2.1": true, "-j REJECT --reject-with tcp-reset": true,
		"": false, "-j OTHER": false, "-j LOG": false, "-p tcp -j ACCEPT": false, "-m comment --comment a": false, "-m mark --mark 1 -j ACCEPT": false, `-j "ACCEPT"`: false,
	} {
		if got := endsTraversal(rule); got != want {
			t.Errorf("endsTraversal(%s): got %t, want %t", rule, got, want)
		}
	}
}

// Rendered rules of open chains are usual, and foreign rules are not.
func TestUsualRules(t *testing.T) {
	t.Parallel()
	for _, part := range randomLoad(t, testenv.Random(t)) {
		for _, o := range part {
			if k := o.Key; k.Rule != "" && !isHook(k.Chain) && !isUsual(k.Table, k.Rule) {
				t.Errorf("chain %s of table %v: isUsual(%s): got false, want true", k.Chain, k.Table, k.Rule)
			}
		}
	}
	for _, rule := range []string{
		"", "-j DROP", "-s 192.0.2.1/32 -j RETURN", "! -d 192.0.2.1/32 -j RETURN", "-m limit --limit 5/sec -j RETURN", "-m comment --comment a -j RETURN",
		"-m comment --comment \"a\nb\" -j RETURN", `-d "192.0.2.1/32" -j RETURN`, "-g VIPKIT-NODEPORTS", `"-d" 192.0.2.1/32`,
	} {
		if isUsual(NAT, rule) {
			t.Errorf("table nat: isUsual(%q): got true, want false", rule)
		}
	}
	for table, want := range map[Table]bool{NAT: false, Filter: true, Mangle: false} {
		if got := isUsual(table, reject); got != want {
			t.Errorf("table %v: isUsual(%q): got %t, want %t", table, reject, got, want)
		}
	}
}

// A rule of another program has an extension that rules of the family do not have, jumps to a
// chain of another program, or cannot be read.
func TestForeignRules(t *testing.T) {
	t.Parallel()
	f := Family{Extensions: []Extension{{Name: "comment"}, {Name: "tcp"}, {Name: "REJECT"}}}
	for rule, want := range map[string]bool{
		"-j DROP": false, "-j ACCEPT": false, "-g VIPKIT-SERVICES": false, "-s 192.0.2.0/24 -j VIPKIT-SVC-AAAAAAAAAAAAAAAA": false, reject: false, "-p tcp": false,
		`! -d 192.0.2.1/32 -p tcp -m comment --comment "a -m owner -j OTHER" -m tcp --dport 80 -j RETURN`: false,
		"-m owner --uid-owner 0 -j RETURN": true, "-p tcp -m tcp --dport 80 -m owner --uid-owner 0": true, "-j SYNPROXY": true, "-g OTHER": true,
		"-j VIPKIT-OTHER": true, `-j "DROP"`: true, `-m "tcp"`: true, "-m": true, "-j": true, "": true, "-m comment --comment \"a\nb\" -j RETURN": true,
	} {
		if got := f.isForeign(newNames("vipkit"), Filter, rule); got != want {
			t.Errorf("isForeign(%q): got %t, want %t", rule, got, want)
		}
	}
}
