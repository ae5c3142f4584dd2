package house

import (
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

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
		for _, name := range errorsOf(d) {
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
func errorsOf(d *folder) (names []string) {
	for _, s := range d.sources {
		for _, decl := range s.ast.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || s.isTest() {
				continue
			}
			for _, spec := range g.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					if n := spec.Names[0].Name; g.Tok == token.VAR && strings.HasPrefix(n, "Err") {
						names = append(names, s.ast.Name.Name+"."+n)
					}
				case *ast.TypeSpec:
					if n := spec.Name.Name; strings.HasSuffix(n, "Errors") && spec.Name.IsExported() {
						names = append(names, s.ast.Name.Name+"."+n)
					}
				}
			}
		}
	}
	return names
}
