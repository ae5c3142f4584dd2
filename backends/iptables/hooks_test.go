package iptables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testenv"
)

const portals = `-m comment --comment "kubernetes service portals" -j VIPKIT-SERVICES`

// A jump that stands behind a rule of others for all packets is dead, with all its copies,
// and gives way to one in front; one that is not what is printed does not count.
func TestDeadJumps(t *testing.T) {
	n := newNames("vipkit")
	ref := chainRef{nat, "PREROUTING"}
	for _, c := range []struct {
		what   string
		rules  []string
		hidden map[chainRef]hiddenRules
		want   []op
	}{
		{"in front", []string{portals, "-j ACCEPT"}, nil, nil},
		{"behind some", []string{"-s 192.0.2.0/24 -j ACCEPT", "-j OTHER", portals}, nil, nil},
		{"behind all", []string{"-j ACCEPT", portals}, nil, written(t, "= nat PREROUTING < "+portals)},
		{"behind all, twice", []string{portals, "-g OTHER", portals}, nil, written(t, "= nat PREROUTING < "+portals)},
		{"another, behind all", []string{portals, "-m comment --comment x -j RETURN", "-j VIPKIT-SERVICES"}, nil, written(t, "- nat PREROUTING < -j VIPKIT-SERVICES")},
		{"hidden", []string{portals, "-j ACCEPT"}, map[chainRef]hiddenRules{ref: {2, []int{0}}}, written(t, "+ nat PREROUTING < "+portals)},
		{"what precedes is hidden", []string{"-j ACCEPT", portals}, map[chainRef]hiddenRules{ref: {2, []int{0}}}, nil},
	} {
		l := newListing(n, c.hidden)
		text := "*nat\n:VIPKIT-SERVICES - [0:0]\n-A PREROUTING " + strings.Join(c.rules, "\n-A PREROUTING ") + "\nCOMMIT\n"
		if _, err := l.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		found, dead, err := l.end()
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		copies := strings.Count(text, portals)
		if len(c.want) == 1 && c.want[0].Kind == backends.Replace {
			c.want[0].Value = strings.Repeat(portals+"\n", copies)
		}
		asked := written(t, "+ nat VIPKIT-SERVICES", "+ nat PREROUTING < "+portals)
		got := newAdoption(n, found, dead, asked).plan(asked)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(key{})); diff != "" {
			t.Errorf("%s: the operations (-want +got):\n%s", c.what, diff)
		}
		m := model{ref: c.rules, {nat, "VIPKIT-SERVICES"}: nil}
		if err := m.restore(string(scriptOf(t, got).text)); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	l := newListing(n, map[chainRef]hiddenRules{ref: {2, []int{0}}})
	if _, err := l.Write([]byte("*nat\n-A PREROUTING -j ACCEPT\nCOMMIT\n")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.end(); err == nil {
		t.Error("with fewer rules than there were in nf_tables: got no error")
	}
}

func TestDecides(t *testing.T) {
	for rule, want := range map[string]bool{
		"-j ACCEPT": true, "-j RETURN": true, "-g OTHER": true, `-m comment --comment "a b" -j DROP`: true, "-m comment --comment a -m comment --comment b -j DROP": true,
		"-j DNAT --to-destination 192.0.2.1": true, "-j REJECT --reject-with tcp-reset": true,
		"": false, "-j OTHER": false, "-j LOG": false, "-p tcp -j ACCEPT": false, "-m comment --comment a": false, "-m mark --mark 1 -j ACCEPT": false, `-j "ACCEPT"`: false,
	} {
		if got := decides(rule); got != want {
			t.Errorf("%s: decides about all packets: got %t, want %t", rule, got, want)
		}
	}
}

// Rules of open chains are usual as they are rendered, and what others put there is not.
func TestUsualRules(t *testing.T) {
	for _, world := range randomWorld(t, testenv.Random(t)) {
		for _, o := range world {
			if k := o.Key; k.rule != "" && !isHook(k.chain) && !isUsual(k.table, k.rule) {
				t.Errorf("%s of table %v: %s: is not usual", k.chain, k.table, k.rule)
			}
		}
	}
	for _, rule := range []string{
		"", "-j DROP", "-s 192.0.2.1/32 -j RETURN", "! -d 192.0.2.1/32 -j RETURN", "-m limit --limit 5/sec -j RETURN", "-m comment --comment a -j RETURN",
		"-m comment --comment \"a\nb\" -j RETURN", `-d "192.0.2.1/32" -j RETURN`, "-g VIPKIT-NODEPORTS", `"-d" 192.0.2.1/32`,
	} {
		if isUsual(nat, rule) {
			t.Errorf("%q: is usual in table nat", rule)
		}
	}
}
