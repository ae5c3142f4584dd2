package house

import (
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// checkParts requires a comment on every exported constant, variable, field and method of an interface
// of a package for users, before it or on its line. A linter requires comments on all other names.
func checkParts(d *folder) (all []finding) {
	for _, s := range d.sources {
		if s.isTest() || s.ast.Name.Name == "main" || slices.Contains(strings.Split(d.path, "/"), "internal") {
			continue
		}
		for _, decl := range s.ast.Decls {
			if group, ok := decl.(*ast.GenDecl); ok {
				all = append(all, s.checkGroup(group)...)
			}
		}
	}
	return all
}

func (s *source) checkGroup(group *ast.GenDecl) (all []finding) {
	for _, spec := range group.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			isOnly := len(group.Specs) == 1 && group.Doc.Text() != ""
			if !isOnly {
				all = append(all, s.checkPart(spec.Names, spec.Doc, spec.Comment)...)
			}
		case *ast.TypeSpec:
			for _, f := range parts(spec) {
				all = append(all, s.checkPart(f.Names, f.Doc, f.Comment)...)
			}
		}
	}
	return all
}

// parts returns the fields or the methods of an exported type.
func parts(spec *ast.TypeSpec) []*ast.Field {
	switch t := spec.Type.(type) {
	case *ast.StructType:
		if spec.Name.IsExported() {
			return t.Fields.List
		}
	case *ast.InterfaceType:
		if spec.Name.IsExported() {
			return slices.DeleteFunc(t.Methods.List, func(m *ast.Field) bool { return len(m.Names) == 0 })
		}
	}
	return nil
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
