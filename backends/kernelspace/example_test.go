package kernelspace_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/proxy"
)

// A program on Windows passes a binding to New; here a simulated HNS stands for it.
func ExampleNew() {
	hns := hcntest.New(hcn.Version{Major: 16}, netip.MustParseAddr("172.18.0.2"))
	network := hns.AddNetwork(hcn.Network{Name: "l2bridge0", Type: "L2Bridge"})
	if _, err := hns.AddEndpoint(network, "pod", pod(1)); err != nil {
		fmt.Println(err)
		return
	}
	backend, err := kernelspace.New(hns, kernelspace.Options{Network: "l2bridge0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	snapshot := proxy.NewSnapshot(theNode(), service(1, local(1), remote(1)))
	if err := backend.Apply(context.Background(), proxy.Snapshot{}, snapshot); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(hns.Dump())
	// Output:
	// endpoint remote 10.1.0.1 mac 02-11-0A-01-00-01
	// load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 to local 10.0.0.1; remote 10.1.0.1
}
