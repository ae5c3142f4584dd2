//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "quickstart: this needs Linux, for its network namespaces and nftables; a virtual machine or WSL 2 will do")
	os.Exit(1)
}
