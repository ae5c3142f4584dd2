package xtables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testenv"
)

// written parses operations, one in each line: "+", "=" or "-" to add, replace or remove; the
// table; the chain; and "<" and a rule at the front, or ">" and one at the back, or ":" and
// the content of the chain.
func written(t *testing.T, lines ...string) []Op {
	t.Helper()
	var ops []Op
	for _, line := range lines {
		part := strings.SplitN(line, " ", 5)
		of, known := (Names{Chains: map[Table][]string{NAT: nil, Filter: nil, Mangle: nil}}).tableNamed(part[1])
		if !known {
			t.Fatalf("table in %q: got an unknown one", line)
		}
		o := Op{Kind: map[string]backends.OpKind{"+": backends.Add, "=": backends.Replace, "-": backends.Remove}[part[0]], Key: Key{Table: of, Chain: part[2]}}
		switch {
		case len(part) < 5:
		case part[3] == ":":
			o.Value = part[4] + "\n"
		default:
			o.Key.Back, o.Key.Rule = part[3] == ">", part[4]
		}
		ops = append(ops, o)
	}
	return ops
}

// The text of a script has the order in which no packet passes untranslated. The script counts
// the rules and chains that it writes, and knows which operations are committed when the
// program stops at a line.
func TestScripts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  string
		ops   []Op
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
			what: "endpoints removed",
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
			what: "three tables",
			ops:  written(t, "+ filter F : -j DROP", "+ nat B : -j C", "- mangle M : -j D", "+ mangle INPUT < -j N", "+ mangle N : -j D"),
			want: "*mangle\n:M - [0:0]\n:N - [0:0]\n-A N -j D\n-I INPUT -j N\n-X M\nCOMMIT\n*nat\n:B - [0:0]\n-A B -j C\nCOMMIT\n" +
				"*filter\n:F - [0:0]\n-A F -j DROP\nCOMMIT\n",
			rules: 8, done: []int{0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3, 4, 4, 4, 4},
		},
		{
			what: "a chain is rewritten, and one of its rules removed",
			ops: append(written(t, "- filter S < -j DROP"), Op{
				Kind: backends.Replace, Key: Key{Table: Filter, Chain: "S", Back: true}, Value: "-j A\n",
			}),
			want: "*filter\n:S - [0:0]\n-A S -j A\nCOMMIT\n", rules: 2, done: []int{0, 0, 0, 0},
		},
		{what: "a refused object is removed", ops: []Op{{Kind: backends.Remove, Key: Key{Table: refused}, Value: "no"}}},
	} {
		s, err := newScript(c.ops, 0)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if diff := cmp.Diff(c.want, string(s.text)); diff != "" || s.rules != c.rules {
			t.Errorf("%s: rules: got %d, want %d; script (-want +got):\n%s", c.what, s.rules, c.rules, diff)
		}
		var done []int
		lines := strings.SplitAfter(string(s.text), "\n")
		for i, line := range lines[:len(lines)-1] {
			done = append(done, len(s.committed(i+1)))
			if got := s.line(i + 1); got != line {
				t.Errorf("%s: line %d: got %q, want %q", c.what, i+1, got, line)
			}
		}
		if diff := cmp.Diff(c.done, done); diff != "" {
			t.Errorf("%s: operations committed at each line (-want +got):\n%s", c.what, diff)
		}
		if got := s.line(len(lines)); got != "" {
			t.Errorf("%s: line after the end: got %q, want an empty one", c.what, got)
		}
	}
	if s, err := newScript([]Op{{Key: Key{Table: refused}, Value: "no such name"}}, 0); err == nil || err.Error() != "no such name" {
		t.Errorf("script of a refused object: got %v, error %v, want the value as the error", s, err)
	}
}

// A long first load makes new chains in pieces. Nothing that packets reach leads to them before the last
// commit, which alone changes existing chains; what the pieces have made is known at each line.
func TestScriptInPieces(t *testing.T) {
	t.Parallel()
	ops := written(t, "+ nat B : -j A1\n-j A2", "+ nat S", "= nat R : -j B", "+ nat S < -j B", "+ nat S > -j N", "+ nat OUTPUT < -j S", "+ nat INPUT > -j S")
	s, err := newScript(ops, 12)
	testenv.NoError(t, err)
	const want = "*nat\n:B - [0:0]\n:S - [0:0]\nCOMMIT\n*nat\n-A B -j A1\nCOMMIT\n*nat\n-A B -j A2\nCOMMIT\n*nat\n-A S -j B\nCOMMIT\n*nat\n-A S -j N\nCOMMIT\n" +
		"*nat\n:R - [0:0]\n-A R -j B\n-I OUTPUT -j S\n-A INPUT -j S\nCOMMIT\n"
	if diff := cmp.Diff(want, string(s.text)); diff != "" {
		t.Fatalf("script (-want +got):\n%s", diff)
	}
	if got, whole := s.rules, scriptOf(t, ops).rules; got != whole {
		t.Errorf("rules: got %d, want %d as in one commit", got, whole)
	}
	for line, want := range map[int]int{1: 0, 4: 0, 5: 4, 16: 4, s.lines: 4, s.lines + 1: len(ops)} {
		if got := len(s.committed(line)); got != want {
			t.Errorf("operations committed at line %d: got %d, want %d", line, got, want)
		}
	}
}

// Found chains and rules become the same objects as rendered ones, and can all be removed.
func TestObjectsOfFoundRules(t *testing.T) {
	t.Parallel()
	n := newNames("vipkit")
	const own = "VIPKIT-SVC-AAAAAAAAAAAAAAAA"
	found := saved{
		{NAT, "OUTPUT"}:             {"-j VIPKIT-SERVICES"},
		{NAT, "VIPKIT-SERVICES"}:    {"-j A", "-j B"},
		{Filter, "VIPKIT-FORWARD"}:  {"-j C", "-j D"},
		{NAT, own}:                  nil,
		{Filter, "VIPKIT-SERVICES"}: nil,
	}
	got := map[Object]int{}
	for _, o := range found.objects(n) {
		got[o]++
	}
	chain := func(of Table, name, value string) Object {
		return Object{Key: Key{Table: of, Chain: name}, Value: value}
	}
	rule := func(in, text string) Object { return Object{Key: Key{Table: NAT, Chain: in, Rule: text}} }
	want := map[Object]int{
		chain(NAT, "VIPKIT-SERVICES", ""): 1, chain(NAT, own, ""): 1, chain(Filter, "VIPKIT-SERVICES", ""): 1,
		chain(Filter, "VIPKIT-FORWARD", "-j C\n-j D\n"): 1,
		rule("OUTPUT", "-j VIPKIT-SERVICES"):            1, rule("VIPKIT-SERVICES", "-j A"): 1, rule("VIPKIT-SERVICES", "-j B"): 1,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Key{})); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	delete(want, chain(NAT, "VIPKIT-SERVICES", "")) // the removal has the rules, which may have to be removed alone
	want[chain(NAT, "VIPKIT-SERVICES", "-j A\n-j B\n")] = 1
	delete(want, rule("VIPKIT-SERVICES", "-j A")) // these are removed with their chain
	delete(want, rule("VIPKIT-SERVICES", "-j B"))
	clear(got)
	for _, o := range found.removal(n, nil) {
		if o.Kind != backends.Remove {
			t.Errorf("operation on %v: got %v, want %v", o.Key, o.Kind, backends.Remove)
		}
		got[Object{Key: o.Key, Value: o.Value}]++
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Key{})); diff != "" {
		t.Errorf("removed objects (-want +got):\n%s", diff)
	}
}

// Many service ports have rules in an open chain; the rules of another chain have one owner.
func TestOpenChains(t *testing.T) {
	t.Parallel()
	n := newNames("vipkit")
	for name, want := range map[string]bool{
		"OUTPUT": true, "VIPKIT-SERVICES": true, "VIPKIT-EXTERNAL-SERVICES": true, "VIPKIT-NODEPORTS": true,
		"VIPKIT-FORWARD": false, "VIPKIT-PROXY-FIREWALL": false, "VIPKIT-SVC-AAAAAAAAAAAAAAAA": false,
	} {
		if got := n.IsOpen(name); got != want {
			t.Errorf("isOpen(%s): got %t, want %t", name, got, want)
		}
	}
}
