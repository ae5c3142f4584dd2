//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "scale: network namespaces are a matter of Linux")
	os.Exit(1)
}
