package kubestore_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
)

// The pool shares the ranges of a cluster with the API server's own allocator. A program
// makes its client from a rest.Config; the example uses a fake one.
func Example() {
	ctx := context.Background()
	_, client := newAPI()
	store := kubestore.New(client, kubestore.Options{})
	pool, err := allocator.NewPool(store, allocator.PoolOptions{
		Ranges: []allocator.Config{{Prefix: netip.MustParsePrefix("10.96.0.0/24")}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	wanted, _ := allocator.ParseKey("10.96.0.10")
	claims, err := pool.Reserve(ctx, "gateway.networking.k8s.io/gateways/default/entry", allocator.Request{Key: wanted})
	if err != nil {
		fmt.Println(err)
		return
	}
	// The Gateway is stored here.
	if _, err := pool.Bind(ctx, claims...); err != nil {
		fmt.Println(err)
		return
	}
	_, err = pool.Reserve(ctx, "services/default/web", allocator.Request{Key: wanted})
	fmt.Println(err)
	// Output: 10.96.0.10 is already allocated to "gateway.networking.k8s.io/gateways/default/entry"
}
