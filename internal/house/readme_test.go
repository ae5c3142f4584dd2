package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestReadmeShowsARealProgram checks that the program in the README is examples/embed, which
// is compiled.
func TestReadmeShowsARealProgram(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	testenv.NoError(t, err)
	program, err := os.ReadFile(filepath.Join(root, "examples", "embed", "main.go"))
	testenv.NoError(t, err)
	_, code, found := strings.Cut(string(program), "\npackage main\n")
	if !found {
		t.Fatal("examples/embed has no package clause")
	}
	if want := "```go\npackage main\n" + code + "```"; !strings.Contains(string(readme), want) {
		t.Errorf("README.md: want examples/embed/main.go unchanged, as this block:\n%s", want)
	}
}

// TestEmbeddingShowsExamples checks that each block of code in docs/embedding.md is a part of an
// example, which is compiled.
func TestEmbeddingShowsExamples(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "embedding.md"))
	testenv.NoError(t, err)
	for _, c := range []struct{ begins, example string }{
		{"\tregistry := ", "proxy/prommetrics/example_test.go"},
		{"\tclient, err := ", "proxy/kubewatch/example_test.go"},
	} {
		example, err := os.ReadFile(filepath.Join(root, c.example))
		testenv.NoError(t, err)
		_, rest, found := strings.Cut(string(text), "```go\n"+c.begins)
		code, _, _ := strings.Cut(rest, "```\n")
		code = strings.ReplaceAll(code, "log.Fatal(err)", "return") // which only programs are allowed to call
		if !found || !strings.Contains(string(example), c.begins+code) {
			t.Errorf("docs/embedding.md: block %q is not in %s", c.begins+code, c.example)
		}
	}
}

// TestLinksHaveTargets checks that links from documents lead to files of the tree, and to headings of them.
func TestLinksHaveTargets(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`)
	count := 0
	for _, document := range documents(t) {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Error(err)
			continue
		}
		links := link.FindAllStringSubmatch(string(text), -1)
		count += len(links)
		for _, m := range links {
			target := filepath.Join(root, filepath.Dir(document), m[1])
			if m[1] == "" {
				target = filepath.Join(root, document)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", document, m[1])
			} else if m[2] != "" && !slices.Contains(anchors(t, target), m[2]) {
				t.Errorf("%s links to %s%s, a heading that does not exist", document, m[1], m[2])
			}
		}
	}
	if count < 20 {
		t.Errorf("links: got %d, want at least 20", count)
	}
}

// anchors returns the anchors that web sites give the headings of a document: #the-words-in-lower-case.
func anchors(t *testing.T, document string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(document)
	testenv.NoError(t, err)
	left := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, "#"+strings.ReplaceAll(left.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// TestFootnotesAreDefined checks that each footnote of a document is defined there once, and
// that each definition is used.
func TestFootnotesAreDefined(t *testing.T) {
	definition, use := regexp.MustCompile(`(?m)^\[\^(\w+)\]: `), regexp.MustCompile(`\[\^(\w+)\]`)
	for _, document := range documents(t) {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Error(err)
			continue
		}
		defined := map[string]int{}
		for _, m := range definition.FindAllStringSubmatch(string(text), -1) {
			defined[m[1]]++
		}
		used := map[string]int{}
		for _, m := range use.FindAllStringSubmatch(definition.ReplaceAllString(string(text), ""), -1) {
			used[m[1]]++
			if defined[m[1]] != 1 {
				t.Errorf("%s: definitions of the footnote %s: got %d, want one", document, m[0], defined[m[1]])
			}
		}
		for name := range defined {
			if used[name] == 0 {
				t.Errorf("%s does not use its footnote [^%s]", document, name)
			}
		}
	}
}

// documents returns all documents, and checks that the most important ones are among them.
func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := fs.Glob(os.DirFS(root), pattern)
		testenv.NoError(t, err)
		all = append(all, found...)
	}
	for _, name := range []string{"README.md", "docs/adding-a-backend.md", "docs/dataplane/userspace.md"} {
		if !slices.Contains(all, name) {
			t.Errorf("documents: got %q, want also %s", all, name)
		}
	}
	return all
}
