// Command kubeproxy replaces kube-proxy on a node. It reads kube-proxy's configuration, watches the API server, and
// serves health checks, metrics and a page that explains where a packet is sent, and why.
//
//	kubeproxy -config /var/lib/kube-proxy/config.conf -hostname-override node-1
//
// -help lists the flags. README.md of its folder says how to run it.
package main

import (
	"os"

	"github.com/vipkit/vipkit/examples/kubeproxy/agent"
)

func main() { os.Exit(agent.Main(os.Args[1:], os.Stdout, os.Stderr)) }
