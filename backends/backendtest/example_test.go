//go:build linux

package backendtest_test

import (
	"fmt"
	"testing"

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/proxy"
)

// A package with a backend runs the whole suite with one test. Its TestMain
// calls os.Exit(backendtest.Main(m)).
func Example() {
	testConformance := func(t *testing.T) {
		backendtest.Run(t, backendtest.Config{
			New:  func(testing.TB) proxy.Backend { return nil /* the backend */ },
			Dump: func(testing.TB) string { return "" /* all that it has programmed */ },
		})
	}
	fmt.Printf("%T\n", testConformance)
	// Output: func(*testing.T)
}
