package house

import (
	"go/ast"
	"go/doc"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// maxSurface is how many entries the index of a package may have: functions,
// types, variables and groups of constants, without methods.
const maxSurface = 49

// checkComments requires a comment on every exported name of a package, and on the methods
// of exported interfaces.
func checkComments(s *source) []finding {
	if s.isTest() || s.isCommand() {
		return nil
	}
	var all []finding
	for _, decl := range s.ast.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if isExported(decl) && decl.Doc.Text() == "" {
				all = append(all, s.found(decl.Pos(), "%s is exported and has no comment", decl.Name.Name))
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				all = append(all, s.checkSpec(decl, spec)...)
			}
		}
	}
	return all
}

// checkParts requires a comment on every exported constant, variable and field of a package for
// users: its own, or that of the line.
func checkParts(s *source) []finding {
	if s.isTest() || s.isCommand() || s.isInternal() {
		return nil
	}
	var all []finding
	for _, decl := range s.ast.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range group.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				isOnly := len(group.Specs) == 1 && group.Doc.Text() != ""
				if !isOnly {
					all = append(all, s.checkPart(spec.Names, spec.Doc, spec.Comment)...)
				}
			case *ast.TypeSpec:
				if fields, ok := spec.Type.(*ast.StructType); ok && spec.Name.IsExported() {
					for _, f := range fields.Fields.List {
						all = append(all, s.checkPart(f.Names, f.Doc, f.Comment)...)
					}
				}
			}
		}
	}
	return all
}

// checkPart returns the exported names that have neither of the comments.
func (s *source) checkPart(names []*ast.Ident, before, after *ast.CommentGroup) (all []finding) {
	for _, name := range names {
		if name.IsExported() && before.Text() == "" && after.Text() == "" {
			all = append(all, s.found(name.Pos(), "%s is exported and has no comment", name.Name))
		}
	}
	return all
}

// isInternal reports whether only this module can import the package.
func (s *source) isInternal() bool {
	return slices.Contains(strings.Split(path.Dir(s.path), "/"), "internal")
}

// isExported reports whether a function, or a method and its type, is exported.
func isExported(f *ast.FuncDecl) bool {
	return f.Name.IsExported() && (f.Recv == nil || ast.IsExported(receiverName(f)))
}

// receiverName returns the name of the type of a method.
func receiverName(f *ast.FuncDecl) string {
	receiver := f.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr:
			receiver = r.X
		case *ast.IndexListExpr:
			receiver = r.X
		case *ast.Ident:
			return r.Name
		default:
			return ""
		}
	}
}

func (s *source) checkSpec(decl *ast.GenDecl, spec ast.Spec) []finding {
	var all []finding
	missing := func(name *ast.Ident, comments ...*ast.CommentGroup) {
		hasText := func(c *ast.CommentGroup) bool { return c.Text() != "" }
		if name.IsExported() && !slices.ContainsFunc(comments, hasText) {
			all = append(all, s.found(name.Pos(), "%s is exported and has no comment", name.Name))
		}
	}
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			missing(name, decl.Doc, spec.Doc, spec.Comment)
		}
	case *ast.TypeSpec:
		missing(spec.Name, decl.Doc, spec.Doc)
		if i, ok := spec.Type.(*ast.InterfaceType); ok && spec.Name.IsExported() {
			for _, m := range ownMethods(i) {
				missing(m.Names[0], m.Doc, m.Comment)
			}
		}
	}
	return all
}

// checkPackageComment requires one package comment: in doc.go, or in a file of package main.
func checkPackageComment(d *folder) []finding {
	var all []finding
	commented := 0
	first := d.sources[0]
	for _, s := range d.sources {
		text := s.ast.Doc.Text()
		if s.isTest() || text == "" {
			continue
		}
		commented++
		switch name := s.ast.Name.Name; {
		case s.isCommand():
		case path.Base(s.path) != "doc.go":
			all = append(all, s.found(s.ast.Package, "the package comment belongs in doc.go"))
		case !strings.HasPrefix(text, "Package "+name+" "):
			all = append(all, s.found(s.ast.Package, "the package comment must begin with %q", "Package "+name))
		}
	}
	if commented != 1 {
		all = append(all, first.found(first.ast.Package, "package has %d package comments, want one", commented))
	}
	return all
}

// checkExample requires an example with output in every package that users import.
func checkExample(d *folder) []finding {
	first := d.sources[0]
	if first.isCommand() || strings.Contains("/"+d.path+"/", "/internal/") || len(d.exported()) == 0 {
		return nil
	}
	var tests []*ast.File
	for _, s := range d.sources {
		if s.isTest() {
			tests = append(tests, s.ast)
		}
	}
	for _, e := range doc.Examples(tests...) {
		if e.Output != "" || e.EmptyOutput {
			return nil
		}
	}
	return []finding{first.found(first.ast.Package, "package has no Example with an // Output: comment")}
}

func checkSurface(d *folder) []finding {
	names := d.exported()
	if len(names) <= maxSurface {
		return nil
	}
	first := d.sources[0]
	return []finding{first.found(first.ast.Package, "package exports %d names, at most %d are allowed: %s",
		len(names), maxSurface, strings.Join(names, " "))}
}

// exported returns the entries of the package's index; a group of constants is
// one, by the name of its first.
func (d *folder) exported() []string {
	var names []string
	for _, s := range d.sources {
		if s.isTest() || s.isCommand() {
			continue
		}
		for _, decl := range s.ast.Decls {
			names = append(names, exportedBy(decl)...)
		}
	}
	return names
}

func exportedBy(decl ast.Decl) []string {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv == nil && decl.Name.IsExported() {
			return []string{decl.Name.Name}
		}
	case *ast.GenDecl:
		var names []string
		for _, spec := range decl.Specs {
			names = append(names, exportedNames(spec)...)
		}
		if decl.Tok == token.CONST && len(names) > 1 {
			return names[:1]
		}
		return names
	}
	return nil
}

func exportedNames(spec ast.Spec) []string {
	var names []string
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if spec.Name.IsExported() {
			names = append(names, spec.Name.Name)
		}
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			if name.IsExported() {
				names = append(names, name.Name)
			}
		}
	}
	return names
}

// TestCapabilitiesAreReported checks that the tests of a backend report each column of the
// table in docs/capabilities.md; they fail if the column differs from their results.
func TestCapabilitiesAreReported(t *testing.T) {
	document, err := os.ReadFile(filepath.Join(root, "docs", "capabilities.md"))
	testenv.NoError(t, err)
	_, table, _ := strings.Cut(string(document), "<!-- capabilities -->\n")
	headings, _, found := strings.Cut(table, "\n")
	if !found {
		t.Fatal("docs/capabilities.md has no table")
	}
	var reports strings.Builder // all tests that report to this file
	for _, d := range readTree(t) {
		for _, s := range d.sources {
			text, err := os.ReadFile(filepath.Join(root, s.path))
			testenv.NoError(t, err)
			if strings.Contains(string(text), `backendtest.Report{File: "../../docs/capabilities.md"`) {
				reports.Write(text)
			}
		}
	}
	for heading := range strings.SplitSeq(strings.Trim(headings, "| "), "|") {
		if heading = strings.TrimSpace(heading); !strings.Contains(reports.String(), strconv.Quote(heading)) {
			t.Errorf("docs/capabilities.md: no backend reports column %q", heading)
		}
	}
}
