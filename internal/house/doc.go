// Package house checks the rules of the repository that no linter checks: the
// floors of the architecture, the sizes of files, functions and types, and
// documentation. The tests parse the tree and build nothing:
//
//	go test ./internal/house
//
// A finding names file, line and rule:
//
//	proxy/runner.go:12: length: function Run has 66 lines, at most 60 are allowed
//
// # Exceptions
//
// A function of up to 80 lines passes with a line //nolint:funlen and the
// reason in its comment. Data do not count towards a function: the lines within
// a literal of a slice, array or map, and within a raw string. A function in such
// a literal is measured by itself. Generated files are not measured. There are no
// other exceptions.
package house
