// Package house checks the rules of the repository that no linter checks: the
// floors of the architecture, the lines of each area, and documentation. The tests parse the tree
// and build nothing:
//
//	go test ./internal/house
//
// A finding names file, line and rule:
//
//	proxy/runner.go:12: floor: floor 2 imports backends of floor 3
package house
