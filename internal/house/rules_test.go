package house

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestRules runs each rule on code that it must refuse and on code that it must accept.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		rule, path, text string
		want             []int // lines
	}{
		{"part", "proxy/a.go", "package proxy\n// The kinds.\nconst (\n\tA = 1\n\t// B is.\n\tB = 2\n\tC = 3 // is\n\td = 4\n)\n// E is.\nconst E = 5", []int{4}},
		{"part", "proxy/a.go", "package proxy\n// T is.\ntype T struct {\n\tA int\n\t// B and C are.\n\tB, C int\n\td int\n\tE\n}\ntype t struct{ A int }", []int{4}},
		{"part", "proxy/a.go", "package proxy\n// I is.\ntype I interface {\n\t// M does.\n\tM()\n\tN()\n\tfmt.Stringer\n}\ntype i interface{ M() }", []int{6}},
		{"part", "proxy/internal/a/a.go", "package a\ntype T struct{ A int }", nil},
		{"floor", "proxy/a.go", "package proxy\nimport \"github.com/vipkit/vipkit/endpoints\"", nil},
		{"floor", "endpoints/a.go", "package endpoints\nimport (\n\"github.com/vipkit/vipkit/proxy\"\n\"github.com/vipkit/vipkit/affinity\"\n)", []int{3, 4}},
		{"floor", "endpoints/a_test.go", "package endpoints_test\nimport (\n\"github.com/vipkit/vipkit/proxy\"\n\"github.com/vipkit/vipkit/affinity\"\n)", []int{3}},
		{"floor", "proxy/new/a.go", "package new", []int{1}},
		{"floor", "proxy/a.go", "package proxy\nimport \"github.com/vipkit/vipkit/internal/new\"", []int{2}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			got := linesFound(t, c.rule, c.path, c.text)
			if !slices.Equal(got, c.want) {
				t.Errorf("lines found: got %v, want %v, in %s:\n%.400s", got, c.want, c.path, c.text)
			}
		})
	}
}

// linesFound returns the lines where a rule finds something in a folder of one file.
func linesFound(t *testing.T, name, file, text string) []int {
	t.Helper()
	s, err := parse(file, text)
	testenv.NoError(t, err)
	var lines []int
	for _, f := range rules()[name](&folder{path: file[:strings.LastIndex(file, "/")], sources: []*source{s}}) {
		lines = append(lines, f.line)
	}
	return lines
}

// TestDocumentsPointToFunctions checks links from the name of a function to a file: the file
// must declare the function.
func TestDocumentsPointToFunctions(t *testing.T) {
	link := regexp.MustCompile("\\[`([\\w.]+)`\\]\\(([^)#]+\\.go)\\)")
	count := 0
	for _, document := range documents(t) {
		text, err := os.ReadFile(filepath.Join(root, document))
		testenv.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if path.Ext(m[1]) == ".go" {
				continue // a link to a file
			}
			count++
			file := path.Join(path.Dir(document), m[2])
			code, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				t.Errorf("%s: %v", document, err)
				continue
			}
			if !slices.Contains(declared(string(code)), m[1]) {
				t.Errorf("%s: %s does not declare %s", document, file, m[1])
			}
		}
	}
	if count < 40 {
		t.Errorf("links to functions: got %d, want at least 40", count)
	}
}

// declared returns the functions, methods and types of a file: "Name", "package.Name" and
// "Type.Method".
func declared(code string) (names []string) {
	pkg := regexp.MustCompile(`(?m)^package (\w+)`).FindStringSubmatch(code)[1]
	for _, m := range regexp.MustCompile(`(?m)^(?:type|func(?: \((?:\w+ )?\*?(\w+)[^)]*\))?) (\w+)`).FindAllStringSubmatch(code, -1) {
		if m[1] != "" {
			names = append(names, m[1]+"."+m[2])
		} else {
			names = append(names, m[2], pkg+"."+m[2])
		}
	}
	return names
}

func TestDeclared(t *testing.T) {
	want := []string{"F", "a.F", "T.M", "U.m", "T", "a.T"}
	got := declared("package a\nfunc F() {}\nfunc (*T[K]) M() {}\nfunc (u U) m() {}\ntype T[K any] int\nvar v int\n")
	testenv.Same(t, want, got, "declared names")
}

// TestErrorTable checks that one table names all errors that are relevant for a backend.
func TestErrorTable(t *testing.T) {
	const doc = "docs/adding-a-backend.md"
	text, err := os.ReadFile(filepath.Join(root, doc))
	testenv.NoError(t, err)
	var rows []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "|") {
			rows = append(rows, line)
		}
	}
	table, found := strings.Join(rows, ""), 0
	for _, d := range readTree(t) {
		if d.path != "proxy" && d.path != "backends" && path.Dir(d.path) != "backends" {
			continue
		}
		for _, name := range errorsOf(t, d) {
			found++
			if !strings.Contains(table, "`"+name+"`") {
				t.Errorf("%s: got no row for %s, want one", doc, name)
			}
		}
	}
	if found < 7 {
		t.Errorf("errors found: got %d, want at least 7", found)
	}
}

// errorsOf names the errors that a package exports, qualified.
func errorsOf(t *testing.T, d *folder) (names []string) {
	t.Helper()
	exported := regexp.MustCompile(`(?m)^(?:var |\t)(Err[A-Z]\w*) += |^type ([A-Z]\w*Errors) `)
	for _, s := range d.sources {
		code, err := os.ReadFile(filepath.Join(root, s.path))
		testenv.NoError(t, err)
		for _, m := range exported.FindAllStringSubmatch(string(code), -1) {
			if !s.isTest() {
				names = append(names, s.ast.Name.Name+"."+m[1]+m[2])
			}
		}
	}
	return names
}
