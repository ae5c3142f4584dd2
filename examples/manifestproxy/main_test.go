package main

import (
	"io"
	"os"
	"testing"

	"github.com/vipkit/vipkit/backends/backendtest"
)

// actVariable in the environment makes the test program the program itself.
const actVariable = "MANIFESTPROXY_TEST_ACT"

func TestMain(m *testing.M) {
	if os.Getenv(actVariable) != "" {
		// The process ends with its test, however that ends: the test holds
		// the other end of standard input.
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(3)
		}()
		os.Exit(run(os.Args[1:], os.Stderr))
	}
	os.Exit(backendtest.Main(m))
}
