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

// This agent serves IPv4 beside another service proxy on the same node, so it has a name and
// a mark of its own. The tracker makes snapshots of Services, and the Runner applies them to
// the backend.
func ExampleNew() {
	backend, err := nftables.New(nftables.Options{
		Identity: backends.Identity{Name: "my-agent", Mark: 0x8000},
		Families: []v1.IPFamily{v1.IPv4Protocol},
	})
	if errors.Is(err, proxy.ErrUnsupported) {
		fmt.Fprintln(os.Stderr, "nf_tables is unsupported on this node:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	// Here the agent would pass Services and EndpointSlices to the tracker, and call
	// tracker.Synced() after it has passed all objects that exist.
	runner := proxy.Runner{Source: tracker, Backend: backend}
	if err := runner.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// New refuses invalid options.
func ExampleNew_badOptions() {
	_, err := nftables.New(nftables.Options{Identity: backends.Identity{Mark: 3}})
	fmt.Println(err)
	// Output: nftables: identity: mark 0x3 is not a single bit
}
