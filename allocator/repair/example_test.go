package repair_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/repair"
)

func ExampleReconcile() {
	store := allocator.NewMemory(allocator.State{}, nil)
	services := func(context.Context) ([]repair.Use, error) {
		return []repair.Use{
			{Owner: "default/web", Text: "10.96.0.80"},
			{Owner: "default/copy", Text: "10.96.0.80"},
			{Owner: "default/old", Text: "192.168.0.1"},
		}, nil
	}
	findings, err := repair.Reconcile(context.Background(), store, services, repair.Options{
		Ranges: []allocator.Config{{Prefix: netip.MustParsePrefix("10.96.0.0/16")}},
	})
	for _, f := range findings {
		fmt.Println(f)
	}
	fmt.Println(err)
	// Output:
	// missing: 10.96.0.80 of default/web (mended)
	// duplicate: 10.96.0.80 of default/copy, held by default/web
	// out of range: 192.168.0.1 of default/old
	// <nil>
}
