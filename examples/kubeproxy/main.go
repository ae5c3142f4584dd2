package main

import (
	"os"

	"github.com/vipkit/vipkit/examples/kubeproxy/agent"
)

func main() { os.Exit(agent.Main(os.Args[1:], os.Stdout, os.Stderr)) }
