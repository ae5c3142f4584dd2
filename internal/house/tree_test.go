package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	root   = "../.."
	module = "github.com/vipkit/vipkit"
)

// source is one parsed Go file. Its path is relative to the root of the tree,
// with slashes.
type source struct {
	path string
	fset *token.FileSet
	ast  *ast.File
}

// folder is one package with its tests, external ones included.
type folder struct {
	path    string
	sources []*source
}

// finding is a line that breaks a rule.
type finding struct {
	path string
	line int
	text string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.path, f.line, f.text) }

// rules returns the rules by name. Each checks one folder.
func rules() map[string]func(*folder) []finding {
	return map[string]func(*folder) []finding{"part": checkParts, "floor": checkFloors}
}

func TestTree(t *testing.T) {
	tree := readTree(t)
	for name, check := range rules() {
		for _, d := range tree {
			for _, f := range check(d) {
				f.text = name + ": " + f.text
				t.Error(f)
			}
		}
	}
}

// readTree parses all Go files of the tree, of all systems, and gives the folders in order.
func readTree(t *testing.T) []*folder {
	t.Helper()
	folders := map[string]*folder{}
	for _, name := range goFiles(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		testenv.NoError(t, err)
		s, err := parse(name, string(text))
		testenv.NoError(t, err)
		dir := path.Dir(s.path)
		if folders[dir] == nil {
			folders[dir] = &folder{path: dir}
		}
		folders[dir].sources = append(folders[dir].sources, s)
	}
	if folders["."] == nil || folders["internal/house"] == nil {
		t.Fatalf("%s is not the root of the tree", root)
	}
	return slices.SortedFunc(maps.Values(folders), func(a, b *folder) int { return strings.Compare(a.path, b.path) })
}

// goFiles names the Go files of the tree, relative to its root, without the
// folders that the go command leaves out.
func goFiles(t *testing.T) []string {
	t.Helper()
	var names []string
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		base := entry.Name()
		switch {
		case err != nil:
			return err
		case !entry.IsDir() && path.Ext(name) == ".go":
			names = append(names, name)
		case !entry.IsDir() || name == ".":
		case base == "testdata", base[0] == '.', base[0] == '_':
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatalf("reading the tree: %v", err)
	}
	return names
}

func parse(name, text string) (*source, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parsing: %w", err)
	}
	return &source{path: name, fset: fset, ast: tree}, nil
}

func (s *source) line(p token.Pos) int { return s.fset.Position(p).Line }

func (s *source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s *source) found(p token.Pos, format string, args ...any) finding {
	return finding{path: s.path, line: s.line(p), text: fmt.Sprintf(format, args...)}
}
