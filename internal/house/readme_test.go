package house

import (
	"os"
	"path/filepath"
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
