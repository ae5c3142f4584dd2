package xtables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
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
// the commits, and the rules and chains that it writes.
func TestScripts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  string
		ops   []Op
		want  string
		rules uint64
	}{
		{
			what: "a first load",
			ops: written(t, "+ nat B : -j A", "+ nat S", "+ filter S", "+ nat S < -j B", "+ nat S < -j C", "+ nat S > -j N",
				"+ filter S > -j REJECT", "+ nat OUTPUT < -j S"),
			want: "*nat\n:B - [0:0]\n:S - [0:0]\n-A B -j A\n-A S -j B\n-A S -j C\n-I OUTPUT -j S\n-A S -j N\nCOMMIT\n" +
				"*filter\n:S - [0:0]\n-A S -j REJECT\nCOMMIT\n",
			rules: 9,
		},
		{
			what: "endpoints removed",
			ops: written(t, "- nat B : -j A", "- nat S < -j B", "+ filter S < -j REJECT1", "+ filter S < -j REJECT2", "- filter S < -j DROP",
				"- filter F : -j DROP"),
			want: "*filter\n-I S -j REJECT2\n-I S -j REJECT1\nCOMMIT\n*nat\n-F B\n-D S -j B\n-X B\nCOMMIT\n" +
				"*filter\n-F F\n-D S -j DROP\n-X F\nCOMMIT\n",
			rules: 6,
		},
		{
			what: "other endpoints",
			ops:  written(t, "= nat B : -j C\n-j D", "+ filter S < -j DROP"),
			want: "*filter\n-I S -j DROP\nCOMMIT\n*nat\n-F B\n-A B -j C\n-A B -j D\nCOMMIT\n", rules: 4,
		},
		{
			what: "three tables",
			ops:  written(t, "+ filter F : -j DROP", "+ nat B : -j C", "- mangle M : -j D", "+ mangle INPUT < -j N", "+ mangle N : -j D"),
			want: "*mangle\n-F M\n:N - [0:0]\n-A N -j D\n-I INPUT -j N\n-X M\nCOMMIT\n*nat\n:B - [0:0]\n-A B -j C\nCOMMIT\n" +
				"*filter\n:F - [0:0]\n-A F -j DROP\nCOMMIT\n",
			rules: 8,
		},
		{
			what: "a chain is rewritten, and one of its rules removed",
			ops: append(written(t, "- filter S < -j DROP"), Op{
				Kind: backends.Replace, Key: Key{Table: Filter, Chain: "S", Back: true}, Value: "-j A\n",
			}),
			want: "*filter\n-F S\n-A S -j A\nCOMMIT\n", rules: 2,
		},
		{
			what: "a jump is replaced",
			ops:  written(t, "+ filter S < -j A", "= filter INPUT < -j S", "= nat B : -j C"),
			want: "*filter\n-I S -j A\nCOMMIT\n*nat\n-F B\n-A B -j C\nCOMMIT\n*filter\n-I INPUT -j S\nCOMMIT\n", rules: 4,
		},
	} {
		s := newScript(c.ops, 0)
		if diff := cmp.Diff(c.want, string(s.text)); diff != "" || s.rules != c.rules {
			t.Errorf("%s: rules: got %d, want %d; script (-want +got):\n%s", c.what, s.rules, c.rules, diff)
		}
		if got := strings.Count(c.want, "COMMIT"); s.commits != got {
			t.Errorf("%s: commits: got %d, want %d", c.what, s.commits, got)
		}
	}
}

// A long first load makes new chains in pieces. Nothing that packets reach leads to them before the last
// commit, which alone changes existing chains.
func TestScriptInPieces(t *testing.T) {
	t.Parallel()
	ops := written(t, "+ nat B : -j A1\n-j A2", "+ nat S", "= nat R : -j B", "+ nat S < -j B", "+ nat S > -j N", "+ nat OUTPUT < -j S", "+ nat INPUT > -j S")
	s := newScript(ops, 12)
	const want = "*nat\n:B - [0:0]\n:S - [0:0]\nCOMMIT\n*nat\n-A B -j A1\nCOMMIT\n*nat\n-A B -j A2\nCOMMIT\n*nat\n-A S -j B\nCOMMIT\n*nat\n-A S -j N\nCOMMIT\n" +
		"*nat\n-F R\n-A R -j B\n-I OUTPUT -j S\n-A INPUT -j S\nCOMMIT\n"
	if diff := cmp.Diff(want, string(s.text)); diff != "" {
		t.Fatalf("script (-want +got):\n%s", diff)
	}
	if got, whole := s.rules, scriptOf(ops).rules; got != whole {
		t.Errorf("rules: got %d, want %d as in one commit", got, whole)
	}
}
