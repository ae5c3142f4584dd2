package ipvs_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// This agent chooses the endpoint with the fewest connections. Services may choose another
// scheduler by the annotation that the tracker passes on.
func ExampleNew() {
	backend, err := ipvs.New(ipvs.Options{Scheduler: "lc"})
	if errors.Is(err, proxy.ErrUnsupported) {
		fmt.Fprintln(os.Stderr, "IPVS is unsupported on this node:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{
		NodeName: "node-1", Annotations: []string{ipvs.SchedulerAnnotation},
	})
	// Here the agent would pass Services and EndpointSlices to the tracker, and call
	// tracker.Synced() after it has passed all objects that exist.
	runner := proxy.Runner{Source: tracker, Backend: backend}
	if err := runner.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// New refuses invalid options.
func ExampleNew_badOptions() {
	_, err := ipvs.New(ipvs.Options{Scheduler: "fastest"})
	fmt.Println(err)
	// Output: ipvs: Options.Scheduler: unknown IPVS scheduler "fastest", want one of [rr wrr lc wlc lblc lblcr sh dh sed nq mh fo ovf]
}
