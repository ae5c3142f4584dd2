package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const root = "../../.."

func wholeTable(t *testing.T) []*mutant {
	t.Helper()
	all, err := readTable(os.DirFS(root))
	testenv.NoError(t, err)
	return all
}

// TestMutantsFit checks all of the table that needs no run: a change that moves code must move
// the mutants of that code, too.
func TestMutantsFit(t *testing.T) {
	tree, names := os.DirFS(root), map[string]bool{}
	for _, m := range wholeTable(t) {
		if names[m.name] {
			t.Errorf("mutant %s: another one has the name", m.name)
		}
		names[m.name] = true
		if _, err := m.apply(tree); err != nil {
			t.Errorf("mutant %s: %v", m.name, err)
		}
		if tests, err := filepath.Glob(filepath.Join(root, m.test.folder, "*_test.go")); err != nil || len(tests) == 0 {
			t.Errorf("mutant %s: %s has no tests (error: %v)", m.name, m.test.folder, err)
		}
		if strings.HasSuffix(m.file, "_test.go") {
			t.Errorf("mutant %s: %s is a test", m.name, m.file)
		}
	}
}

// TestAllAreasHaveMutants checks that no area is left out.
func TestAllAreasHaveMutants(t *testing.T) {
	counts := map[string]int{}
	all := wholeTable(t)
	for _, m := range all {
		area, _, _ := strings.Cut(m.name, "/")
		counts[area]++
	}
	if len(all) < 80 {
		t.Errorf("mutants: got %d, want at least 80", len(all))
	}
	core := 0
	for _, area := range []string{"tracker", "selection", "runner", "conntrack", "health", "allocator"} {
		core += counts[area]
	}
	if core < 20 {
		t.Errorf("mutants of tracker, selection, runner, conntrack, health and allocator: got %d, want at least 20", core)
	}
	for _, area := range []string{"nftables", "iptables", "ipvs", "userspace", "kernelspace"} {
		if counts[area] < 10 {
			t.Errorf("mutants of %s: got %d, want at least 10", area, counts[area])
		}
	}
}

const example = `=== one
Users meet this.
file: a.go
test: ./a ^TestA$
 	first
-	second
+	third

	=== two
`

func TestParse(t *testing.T) {
	valid := strings.TrimSuffix(example, "\t=== two\n")
	all, err := parse("area", valid)
	testenv.NoError(t, err)
	want := mutant{
		name: "area/one", sentence: "Users meet this.", file: "a.go", lane: defaultLane, test: test{"./a", "^TestA$"},
		old: "\tfirst\n\tsecond\n", new: "\tfirst\n\tthird\n",
	}
	if len(all) != 1 || *all[0] != want {
		t.Errorf("parse: got %+v, want one of %+v", all, want)
	}
	for _, c := range []struct{ from, to, want string }{
		{"=== one\n", "", "first"},
		{"Users meet this.\n", "", "no sentence"},
		{"test: ./a ^TestA$\n", "", "want lines"},
		{"test: ./a ^TestA$\n", "test: ./a (\n", "pattern"},
		{"test: ./a ^TestA$\n", "test: ./a ^TestA$\nlane: fast\n", `unknown lane "fast": want one of`},
		{"-\tsecond\n+\tthird\n", "", "changes nothing"},
		{" \tfirst\n-\tsecond\n", "", "no line"},
		{"+\tthird\n", "+\tthird\nmore\n", "unknown line"},
	} {
		if _, err := parse("area", strings.Replace(valid, c.from, c.to, 1)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("parse with %q instead of %q: got error %v, want one with %q", c.to, c.from, err, c.want)
		}
	}
}

func TestApply(t *testing.T) {
	folder := t.TempDir()
	m := mutant{file: "a.go", old: "\tb\n", new: "\tc\n"}
	for content, want := range map[string]string{"\tb\n": "\tc\n", "a\n\tb\nc\n": "a\n\tc\nc\n", "\tb\n\tb\n": "", "\t\tb\n": "", "\tbb\n": ""} {
		testenv.NoError(t, os.WriteFile(filepath.Join(folder, "a.go"), []byte(content), 0o600))
		got, err := m.apply(os.DirFS(folder))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("mutant of %q: got %q and error %v, want %q", content, got, err, want)
		}
	}
}

func TestChoose(t *testing.T) {
	all := []*mutant{{name: "a/one", lane: "test"}, {name: "a/two", lane: "ipvs"}, {name: "b/one", lane: "test"}}
	for _, c := range []struct {
		names, lane string
		want        []string
		err         string
	}{
		{"", "", []string{"a/one", "a/two", "b/one"}, ""},
		{"^a/", "test", []string{"a/one"}, ""},
		{"none", "ipvs", nil, "known ones are:\n\ta/two"},
		{"", "none", nil, "want one of " + strings.Join(laneNames(), ", ")},
		{"(", "", nil, "-run"},
	} {
		chosen, err := choose(all, c.names, c.lane)
		var got []string
		for _, m := range chosen {
			got = append(got, m.name)
		}
		if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("choose %q in lane %q: got %v and error %v, want %v and one with %q", c.names, c.lane, got, err, c.want, c.err)
		}
	}
}

func TestRead(t *testing.T) {
	const events = `{"Action":"run","Test":"TestA"}
{"Action":"output","Test":"TestA","Output":"some text\n"}
{"Action":"pass","Test":"TestA"}
{"Action":"fail","Test":"TestB/two"}
{"Action":"fail","Test":"TestB"}
{"Action":"fail","Package":"p"}
`
	for _, c := range []struct {
		events string
		want   outcome
	}{
		{events, outcome{failed: "TestB/two", passed: 1, built: true, output: "some text\n"}},
		{`{"Action":"run","Test":"TestA"}{"Action":"fail","Package":"p"}`, outcome{failed: "TestA, which ended the process", built: true}},
		{`{"Action":"build-fail"}`, outcome{}},
	} {
		if got, err := read(strings.NewReader(c.events)); got != c.want || err != nil {
			t.Errorf("events %s: got %+v and error %v, want %+v", c.events, got, err, c.want)
		}
	}
	if _, err := read(strings.NewReader("FAIL")); err == nil {
		t.Error("text that is no event: got no error, want one")
	}
}

func TestArguments(t *testing.T) {
	t.Chdir(root)
	var out bytes.Buffer
	if err := run(t.Context(), &out, []string{"-list", "-run", "/full-set-freezes$"}); err != nil || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("-list of one: got error %v and %q, want two lines", err, &out)
	}
	for _, args := range [][]string{{"unknown"}, {"-p", "0"}, {"-run", "^unknown$"}, {"-lane", "unknown"}} {
		if err := run(t.Context(), &out, args); err == nil {
			t.Errorf("arguments %q: got no error, want one", args)
		}
	}
}
