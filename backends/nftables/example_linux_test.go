package nftables_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/proxy"
)

// An agent that serves IPv4 beside another service proxy on the same node: it
// has a name and a mark of its own. A tracker is fed by whoever knows the
// Services; the Runner carries its snapshots into the kernel.
func ExampleNew() {
	backend, err := nftables.New(nftables.Options{
		Identity: backends.Identity{Name: "my-agent", Mark: 0x8000},
		Families: []v1.IPFamily{v1.IPv4Protocol},
	})
	if errors.Is(err, proxy.ErrUnsupported) {
		fmt.Fprintln(os.Stderr, "this node cannot do it:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	// Here the agent would hand Services and EndpointSlices to the tracker,
	// and say tracker.Synced() when it has handed over all there are.
	runner := proxy.Runner{Source: tracker, Backend: backend}
	if err := runner.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// Options that make no sense are refused at once.
func ExampleNew_badOptions() {
	_, err := nftables.New(nftables.Options{Identity: backends.Identity{Mark: 3}})
	fmt.Println(err)
	// Output: nftables: identity: mark 0x3 is not a single bit
}
