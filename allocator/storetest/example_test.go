package storetest_test

import (
	"context"
	"fmt"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
)

// The test of a store calls Run; tests of its other abilities use the keys of the suite, too.
func ExampleKey() {
	store := allocator.NewMemory(allocator.State{}, nil)
	versions, err := store.Commit(context.Background(), []allocator.Op{
		{Claim: allocator.Claim{Key: storetest.Key(10), Owner: "kube-system/kube-dns", Token: 1}},
	})
	fmt.Println(storetest.Key(10), versions, err)
	// Output: 10.96.0.10 [1] <nil>
}
