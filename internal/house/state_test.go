package house

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

func checkInit(s *source) []finding {
	var all []finding
	for _, decl := range s.ast.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			all = append(all, s.found(f.Pos(), "init() runs without a call"))
		}
	}
	return all
}

// checkExit requires that only programs, and the TestMain of a package, end the process.
func checkExit(s *source) []finding {
	if s.isCommand() {
		return nil
	}
	var all []finding
	for _, decl := range s.ast.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && s.isTest() && f.Name.Name == "TestMain" {
			continue
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok || !s.endsProcess(e) {
				return true
			}
			all = append(all, s.found(n.Pos(), "only a program ends the process; return an error"))
			return true
		})
	}
	return all
}

// checkClock requires that packages of the agent keep the monotonic clock of times, so that
// durations are right when the wall clock is set. Metrics and files use the wall clock.
func checkClock(s *source) []finding {
	within := func(folders ...string) bool {
		return slices.ContainsFunc(folders, func(f string) bool { return strings.HasPrefix(s.path, f+"/") })
	}
	agent := within("proxy", "backends", "affinity", "endpoints", "internal/kernel/rawnetlink", "internal/kernel/ipvs", "internal/kernel/nfnetlink", "internal/kernel/nft", "backends/internal/nodecheck", "internal/pause")
	if s.isTest() || !agent || within("proxy/prommetrics", "proxy/manifest") {
		return nil
	}
	var all []finding
	ast.Inspect(s.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if f, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Unix", "UnixMilli", "UnixMicro", "UnixNano", "UTC"}, f.Sel.Name) {
			all = append(all, s.found(n.Pos(), "%s() drops the monotonic clock; the wall clock can be set", f.Sel.Name))
		}
		return true
	})
	return all
}

func (s *source) endsProcess(e ast.Expr) bool {
	return s.isCall(e, "os", "Exit") || s.isCall(e, "syscall", "Exit") || s.isCall(e, "log", "Fatal*", "Panic*")
}

func checkGlobals(s *source) []finding {
	var all []finding
	for _, decl := range s.ast.Decls {
		vars, ok := decl.(*ast.GenDecl)
		if !ok || vars.Tok != token.VAR {
			continue
		}
		for _, spec := range vars.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if ok && !s.isConstant(v) && !hasLine(v.Doc, "//go:embed ") && !hasLine(vars.Doc, "//go:embed ") && !hasLine(vars.Doc, "//go:linkname ") {
				all = append(all, s.found(v.Pos(), "variable %s is state of the package", v.Names[0].Name))
			}
		}
	}
	return all
}

// isConstant reports whether a package-level variable would be a constant if Go had
// constants of its type.
func (s *source) isConstant(v *ast.ValueSpec) bool {
	for i, name := range v.Names {
		if name.Name == "_" {
			continue
		}
		if len(v.Values) <= i || !s.isConstantValue(name.Name, v.Values[i]) {
			return false
		}
	}
	return true
}

func isSelector(e ast.Expr, name string) bool {
	selector, ok := e.(*ast.SelectorExpr)
	return ok && selector.Sel.Name == name
}

func (s *source) isConstantValue(name string, e ast.Expr) bool {
	isError := strings.HasPrefix(name, "Err") || strings.HasPrefix(name, "err")
	switch {
	case isError && (s.isCall(e, "errors", "New") || s.isCall(e, "fmt", "Errorf")):
		return true
	case isError && isSelector(e, name): // the error of another package, for importers of this one
		return true
	case s.isCall(e, "regexp", "MustCompile"):
		return true
	case s.isTest() && (s.isCall(e, "flag", "*") || s.isCall(e, "net/netip", "Must*")):
		return true
	}
	return false
}
