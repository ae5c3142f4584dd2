package conntrack_test

import (
	"context"
	"fmt"
	"os"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
)

// dataplane is a backend that does nothing.
type dataplane struct{ proxy.NoAbilities }

func (dataplane) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return nil }
func (dataplane) Cleanup(context.Context) error                               { return nil }

// A Runner that cleans the flows after each change of the rules.
func ExampleCleaner() {
	cleaner, err := conntrack.New(conntrack.Options{
		Observe: func(a conntrack.Account) { fmt.Println("removed", a.Removed, "flows in", a.Duration) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer func() { _ = cleaner.Close() }() // Nothing is lost if this fails.
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	runner := proxy.Runner{Source: tracker, Backend: dataplane{}, FlowCleaner: cleaner}
	if err := runner.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// A zero field leaves its parameter of the kernel as it is.
func ExampleParameters_Set() {
	fmt.Println(conntrack.Parameters{}.Set())
	// Output: <nil>
}
