package iptables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
)

// written gives the operations of some lines: "+", "=" or "-" for what is added, replaced or
// removed; the table; the chain; "<" and a rule in front, or ">" and one behind, or the
// rules that are the content of the chain.
func written(t *testing.T, lines ...string) []op {
	t.Helper()
	var ops []op
	for _, line := range lines {
		part := strings.SplitN(line, " ", 5)
		of, known := tableNamed(part[1])
		if !known {
			t.Fatalf("there is no table in %q", line)
		}
		o := op{Kind: map[string]backends.OpKind{"+": backends.Add, "=": backends.Replace, "-": backends.Remove}[part[0]], Key: key{table: of, chain: part[2]}}
		switch {
		case len(part) < 5:
		case part[3] == ":":
			o.Value = part[4] + "\n"
		default:
			o.Key.back, o.Key.rule = part[3] == ">", part[4]
		}
		ops = append(ops, o)
	}
	return ops
}

// What a script says, in the order in which no packet slips through; how many rules and
// chains it writes; and what was done when it stopped at a line.
func TestScripts(t *testing.T) {
	for _, c := range []struct {
		what  string
		ops   []op
		want  string
		rules uint64
		// done is the number of operations that are done when the program stops at each line.
		done []int
	}{
		{
			what: "a first load",
			ops: written(t, "+ nat B : -j A", "+ nat S", "+ filter S", "+ nat S < -j B", "+ nat S < -j C", "+ nat S > -j N",
				"+ filter S > -j REJECT", "+ nat OUTPUT < -j S"),
			want: "*nat\n:B - [0:0]\n:S - [0:0]\n-A B -j A\n-A S -j B\n-A S -j C\n-I OUTPUT -j S\n-A S -j N\nCOMMIT\n" +
				"*filter\n:S - [0:0]\n-A S -j REJECT\nCOMMIT\n",
			rules: 9, done: []int{0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 6, 6, 6},
		},
		{
			what: "endpoints go",
			ops: written(t, "- nat B : -j A", "- nat S < -j B", "+ filter S < -j REJECT1", "+ filter S < -j REJECT2", "- filter S < -j DROP",
				"- filter F : -j DROP"),
			want: "*filter\n-I S -j REJECT2\n-I S -j REJECT1\nCOMMIT\n*nat\n:B - [0:0]\n-D S -j B\n-X B\nCOMMIT\n" +
				"*filter\n:F - [0:0]\n-D S -j DROP\n-X F\nCOMMIT\n",
			rules: 6, done: []int{0, 0, 0, 0, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4},
		},
		{
			what: "other endpoints",
			ops:  written(t, "= nat B : -j C\n-j D", "+ filter S < -j DROP"),
			want: "*filter\n-I S -j DROP\nCOMMIT\n*nat\n:B - [0:0]\n-A B -j C\n-A B -j D\nCOMMIT\n", rules: 4, done: []int{0, 0, 0, 1, 1, 1, 1, 1},
		},
		{
			what: "a chain is written anew, with a rule that goes with all others",
			ops: append(written(t, "- filter S < -j DROP"), op{
				Kind: backends.Replace, Key: key{table: filter, chain: "S", back: true}, Value: "-j A\n",
			}),
			want: "*filter\n:S - [0:0]\n-A S -j A\nCOMMIT\n", rules: 2, done: []int{0, 0, 0, 0},
		},
		{what: "what could not be written goes", ops: []op{{Kind: backends.Remove, Key: key{table: refused}, Value: "no"}}},
	} {
		s, err := newScript(c.ops)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if diff := cmp.Diff(c.want, string(s.text)); diff != "" || s.rules != c.rules {
			t.Errorf("%s: %d rules, want %d; the script (-want +got):\n%s", c.what, s.rules, c.rules, diff)
		}
		var done []int
		lines := strings.SplitAfter(string(s.text), "\n")
		for i, line := range lines[:len(lines)-1] {
			done = append(done, len(s.committed(i+1)))
			if got := s.line(i + 1); got != line {
				t.Errorf("%s: line %d is %q, want %q", c.what, i+1, got, line)
			}
		}
		if diff := cmp.Diff(c.done, done); diff != "" {
			t.Errorf("%s: operations done at each line (-want +got):\n%s", c.what, diff)
		}
		if got := s.line(len(lines)); got != "" {
			t.Errorf("%s: behind the end, there is a line %q", c.what, got)
		}
	}
	if s, err := newScript([]op{{Key: key{table: refused}, Value: "no such name"}}); err == nil || err.Error() != "no such name" {
		t.Errorf("what cannot be written: got %v, error %v, want that as the error", s, err)
	}
}

// What was found is told as it is rendered, and removed as a whole.
func TestObjectsOfWhatWasFound(t *testing.T) {
	n := newNames("vipkit")
	const own = "VIPKIT-SVC-AAAAAAAAAAAAAAAA"
	found := saved{
		{nat, "OUTPUT"}:             {"-j VIPKIT-SERVICES"},
		{nat, "VIPKIT-SERVICES"}:    {"-j A", "-j B"},
		{filter, "VIPKIT-FORWARD"}:  {"-j C", "-j D"},
		{nat, own}:                  nil,
		{filter, "VIPKIT-SERVICES"}: nil,
	}
	got := map[object]int{}
	for _, o := range found.objects(n) {
		got[o]++
	}
	chain := func(of table, name, value string) object {
		return object{Key: key{table: of, chain: name}, Value: value}
	}
	rule := func(in, text string) object { return object{Key: key{table: nat, chain: in, rule: text}} }
	want := map[object]int{
		chain(nat, "VIPKIT-SERVICES", ""): 1, chain(nat, own, ""): 1, chain(filter, "VIPKIT-SERVICES", ""): 1,
		chain(filter, "VIPKIT-FORWARD", "-j C\n-j D\n"): 1,
		rule("OUTPUT", "-j VIPKIT-SERVICES"):            1, rule("VIPKIT-SERVICES", "-j A"): 1, rule("VIPKIT-SERVICES", "-j B"): 1,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(key{})); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	delete(want, rule("VIPKIT-SERVICES", "-j A")) // these go with their chain
	delete(want, rule("VIPKIT-SERVICES", "-j B"))
	clear(got)
	for _, o := range found.removal(n, nil) {
		if o.Kind != backends.Remove {
			t.Errorf("removing everything does %v with %v", o.Kind, o.Key)
		}
		got[object{Key: o.Key, Value: o.Value}]++
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(key{})); diff != "" {
		t.Errorf("what is removed (-want +got):\n%s", diff)
	}
}

// Rules of one chain come one by one from many sides, of another all from one.
func TestOpenChains(t *testing.T) {
	n := newNames("vipkit")
	for name, want := range map[string]bool{
		"OUTPUT": true, "VIPKIT-SERVICES": true, "VIPKIT-EXTERNAL-SERVICES": true, "VIPKIT-NODEPORTS": true,
		"VIPKIT-FORWARD": false, "VIPKIT-PROXY-FIREWALL": false, "VIPKIT-SVC-AAAAAAAAAAAAAAAA": false,
	} {
		if got := n.isOpen(name); got != want {
			t.Errorf("%s is open: got %t, want %t", name, got, want)
		}
	}
}
