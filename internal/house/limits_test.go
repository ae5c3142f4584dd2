package house

import (
	"go/ast"
	"go/token"
	"strings"
)

// Limits so that a reader can keep a file, a function or a type in mind.
const (
	maxFile           = 400    // lines
	maxFunc, hardFunc = 60, 80 // lines without tables and raw strings
	maxFields         = 12
	maxParams         = 4 // besides a context or a testing.TB
	maxMethods        = 4 // besides those of embedded interfaces
)

func checkLength(s *source) []finding {
	if s.isGenerated() {
		return nil
	}
	var all []finding
	if lines := s.line(s.ast.FileEnd - 1); lines > maxFile {
		all = append(all, s.found(s.ast.Package, "file has %d lines, at most %d are allowed", lines, maxFile))
	}
	for _, decl := range s.ast.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		limit := maxFunc
		if hasLine(f.Doc, "//nolint:funlen // ") {
			limit = hardFunc
		}
		all = append(all, s.checkFunction(f, f.Name.Name, limit)...)
	}
	return all
}

func (s *source) checkFunction(f ast.Node, name string, limit int) []finding {
	var all []finding
	lines, inTables := s.codeLines(f)
	if lines > limit {
		all = append(all, s.found(f.Pos(), "function %s has %d lines, at most %d are allowed", name, lines, limit))
	}
	for _, literal := range inTables {
		all = append(all, s.checkFunction(literal, "in a table of "+name, maxFunc)...)
	}
	return all
}

func hasLine(group *ast.CommentGroup, begin string) bool {
	if group == nil {
		return false
	}
	for _, c := range group.List {
		if rest, ok := strings.CutPrefix(c.Text, begin); ok && rest != "" {
			return true
		}
	}
	return false
}

// codeLines counts the lines of a function without those within tables and raw strings, and
// gives the functions within its tables.
func (s *source) codeLines(f ast.Node) (lines int, inTables []*ast.FuncLit) {
	lines = s.line(f.End()) - s.line(f.Pos()) + 1
	within := func(from, to token.Pos) int { return max(0, s.line(to)-s.line(from)-1) }
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			lines -= within(n.Pos(), n.End())
		case *ast.CompositeLit:
			if isTable(n) {
				lines -= within(n.Lbrace, n.Rbrace)
				inTables = append(inTables, functions(n)...)
				return false
			}
		}
		return true
	})
	return lines, inTables
}

func isTable(c *ast.CompositeLit) bool {
	switch c.Type.(type) {
	case *ast.ArrayType, *ast.MapType:
		return true
	}
	return false
}

// functions returns the outermost function literals of a node.
func functions(node ast.Node) []*ast.FuncLit {
	var all []*ast.FuncLit
	ast.Inspect(node, func(n ast.Node) bool {
		f, ok := n.(*ast.FuncLit)
		if ok {
			all = append(all, f)
		}
		return !ok
	})
	return all
}

func checkWidth(s *source) []finding {
	if s.isGenerated() {
		return nil
	}
	var all []finding
	tooMany := func(at token.Pos, count, limit int, what string) {
		if count > limit {
			all = append(all, s.found(at, "%d %s, at most %d are allowed", count, what, limit))
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.StructType:
			tooMany(n.Pos(), n.Fields.NumFields(), maxFields, "struct fields")
		case *ast.InterfaceType:
			tooMany(n.Pos(), len(ownMethods(n)), maxMethods, "methods of one interface")
		case *ast.FuncType:
			tooMany(n.Pos(), params(n), maxParams, "parameters")
		}
		return true
	})
	return all
}

func ownMethods(i *ast.InterfaceType) []*ast.Field {
	var own []*ast.Field
	for _, m := range i.Methods.List {
		if _, ok := m.Type.(*ast.FuncType); ok {
			own = append(own, m)
		}
	}
	return own
}

// params counts parameters without a leading context and a testing.TB.
func params(f *ast.FuncType) int {
	count := f.Params.NumFields()
	for _, p := range f.Params.List {
		if isFree(p.Type) {
			count -= max(1, len(p.Names))
		}
	}
	return count
}

func isFree(e ast.Expr) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	selector, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := selector.X.(*ast.Ident)
	return ok && (pkg.Name == "context" && selector.Sel.Name == "Context" || pkg.Name == "testing")
}
