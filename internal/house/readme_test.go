package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The program that the README shows is one that compiles: examples/embed.
func TestReadmeShowsARealProgram(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(filepath.Join(root, "examples", "embed", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, code, found := strings.Cut(string(program), "\npackage main\n")
	if !found {
		t.Fatal("examples/embed has no package clause")
	}
	if want := "```go\npackage main\n" + code + "```"; !strings.Contains(string(readme), want) {
		t.Errorf("the README does not show examples/embed/main.go as it is; want this block:\n%s", want)
	}
}

// Links from documents to files of the tree lead somewhere.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
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
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", document, m[1])
			}
		}
	}
	if count < 20 {
		t.Errorf("only %d links are found", count)
	}
}

// documents gives all texts for readers, with at least those that everybody looks for.
func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	for _, name := range []string{"README.md", "docs/adding-a-backend.md", "docs/dataplane/userspace.md"} {
		if !slices.Contains(all, name) {
			t.Errorf("the documents are %q, wanted %s among them", all, name)
		}
	}
	return all
}
