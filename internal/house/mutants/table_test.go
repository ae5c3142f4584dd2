package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const root = "../../.."

// TestMutantsFit checks all of the table that needs no run: a change that moves code must move
// the mutants of that code, too.
func TestMutantsFit(t *testing.T) {
	tree, names := os.DirFS(root), map[string]bool{}
	all, err := readTable(tree)
	testenv.NoError(t, err)
	for _, m := range all {
		if names[m.name] {
			t.Errorf("mutant %s: another one has the name", m.name)
		}
		names[m.name] = true
		if _, err := m.apply(tree); err != nil {
			t.Errorf("mutant %s: %v", m.name, err)
		}
		if tests, err := filepath.Glob(filepath.Join(root, m.suite.folder, "*_test.go")); err != nil || len(tests) == 0 {
			t.Errorf("mutant %s: %s has no tests (error: %v)", m.name, m.suite.folder, err)
		}
		if strings.HasSuffix(m.file, "_test.go") {
			t.Errorf("mutant %s: %s is a test", m.name, m.file)
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
		name: "area/one", sentence: "Users meet this.", file: "a.go", suite: suite{folder: "./a"}, pattern: "^TestA$",
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
		{"test: ./a ^TestA$\n", "test: ./a ^TestA$\nlane: fast\n", `unknown line "lane: fast"`},
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
