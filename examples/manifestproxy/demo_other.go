//go:build !linux

package main

import (
	"fmt"
	"io"
)

// demonstrate needs network namespaces.
func demonstrate(_ options, stderr io.Writer) int {
	_, _ = fmt.Fprintln(stderr, "-demo needs Linux, for its network namespace; a virtual machine or WSL 2 will do") // The status tells it too.
	return 1
}
