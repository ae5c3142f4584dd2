package xtables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const portals = `-m comment --comment "kubernetes service portals" -j VIPKIT-SERVICES`

// A jump after a foreign rule that ends the traversal of all packets is replaced by one in front, with
// all its duplicates.
func TestUnreachableJumps(t *testing.T) {
	t.Parallel()
	n := newNames()
	ref := chainRef{NAT, "PREROUTING"}
	const add, replace = "+ nat PREROUTING < " + portals, "= nat PREROUTING < " + portals
	for _, c := range []struct {
		what  string
		rules []string
		want  string
		// old are the rules that are replaced.
		old []string
	}{
		{"in front", []string{portals, "-j ACCEPT"}, "", nil},
		{"after rules for some packets", []string{"-s 192.0.2.0/24 -j ACCEPT", "-j OTHER", portals}, "", nil},
		{"after a rule for all packets", []string{"-j ACCEPT", portals}, replace, []string{portals}},
		{"after a rule for all packets, twice", []string{portals, "-g OTHER", portals}, replace, []string{portals, portals}},
		{"beside another one", []string{portals, "-s 192.0.2.0/24 -j RETURN", "-j VIPKIT-SERVICES"}, replace, []string{portals, "-j VIPKIT-SERVICES"}},
		{"missing", []string{"-j ACCEPT"}, replace, nil},
	} {
		l := newListing(n)
		text := "*nat\n:VIPKIT-SERVICES - [0:0]\n-A PREROUTING " + strings.Join(c.rules, "\n-A PREROUTING ") + "\nCOMMIT\n"
		if _, err := l.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		e, err := l.end()
		testenv.NoError(t, err)
		var want []Op
		if c.want != "" {
			want = written(t, c.want)
			want[0].Value = Lines(c.old)
		}
		got, _ := e.plan(n, written(t, "+ nat VIPKIT-SERVICES", add), false)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Key{})); diff != "" {
			t.Errorf("%s: operations (-want +got):\n%s", c.what, diff)
		}
		m := model{ref: c.rules, {NAT, "VIPKIT-SERVICES"}: nil}
		if err := m.restore(string(scriptOf(got).text)); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
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
