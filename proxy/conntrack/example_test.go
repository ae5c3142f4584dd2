package conntrack_test

import (
	"context"
	"fmt"
	"os"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
)

// dataplane stands for a backend.
type dataplane struct{}

func (dataplane) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return nil }
func (dataplane) Cleanup(context.Context) error                               { return nil }

// A Runner that cleans the flows after each change of the rules.
func ExampleCleaner_Wrap() {
	cleaner, err := conntrack.New(conntrack.Options{
		Observe: func(a conntrack.Account) { fmt.Println("removed", a.Removed, "flows in", a.Duration) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer func() { _ = cleaner.Close() }() // There is nothing to lose any more.
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	runner := proxy.Runner{Source: tracker, Backend: cleaner.Wrap(dataplane{})}
	if err := runner.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// A policy for TCP needs to be told which endpoints are in the API.
func ExampleNew() {
	_, err := conntrack.New(conntrack.Options{TCP: conntrack.ResetTCP})
	fmt.Println(err)
	// Output: conntrack: a policy for TCP needs InAPI
}
