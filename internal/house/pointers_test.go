package house

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

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
			s, err := parse(file, string(code))
			testenv.NoError(t, err)
			if !slices.Contains(declared(s), m[1]) {
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
func declared(s *source) (names []string) {
	add := func(name string) { names = append(names, name, s.ast.Name.Name+"."+name) }
	for _, decl := range s.ast.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				add(decl.Name.Name)
			} else {
				names = append(names, receiverName(decl)+"."+decl.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok {
					add(spec.Name.Name)
				}
			}
		}
	}
	return names
}

func TestDeclared(t *testing.T) {
	s, err := parse("a/a.go", "package a\nfunc F() {}\nfunc (*T[K]) M() {}\nfunc (U) m() {}\ntype T[K any] int\nvar v int\n")
	testenv.NoError(t, err)
	want := []string{"F", "a.F", "T.M", "U.m", "T", "a.T"}
	if diff := cmp.Diff(want, declared(s)); diff != "" {
		t.Errorf("declared names (-want +got):\n%s", diff)
	}
}
