//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "scale: this needs Linux, for its network namespaces")
	os.Exit(1)
}
