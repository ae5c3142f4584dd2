//go:build !linux

package backendtest

import "testing"

// Main runs the tests of a package, for TestMain, and returns the status to exit
// with. There is no testbed on this system.
func Main(m *testing.M) int { return m.Run() }
