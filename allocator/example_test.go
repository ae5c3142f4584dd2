package allocator_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vipkit/vipkit/allocator"
)

func ExampleRange() {
	services, err := allocator.NewRange(allocator.Config{Prefix: netip.MustParsePrefix("10.96.0.0/24")})
	if err != nil {
		fmt.Println(err)
		return
	}
	offset, ok := services.Offset(allocator.AddrKey(netip.MustParseAddr("10.96.0.10")))
	fmt.Println(services.Size(), offset, ok, services.Key(offset))
	// Output: 254 9 true 10.96.0.10
}

func ExamplePool() {
	ctx := context.Background()
	pool, err := allocator.NewPool(allocator.NewMemory(allocator.State{}, nil), allocator.PoolOptions{
		Ranges: []allocator.Config{
			{Prefix: netip.MustParsePrefix("10.96.0.0/16")},
			{Prefix: netip.MustParsePrefix("fd00:10:96::/112")},
			{FirstPort: 30000, LastPort: 32767},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// One change takes an address of each family and two node ports, or nothing.
	claims, err := pool.Reserve(ctx, "default/web",
		allocator.Request{Key: allocator.AddrKey(netip.MustParseAddr("10.96.0.80"))},
		allocator.Request{Kind: allocator.IPv6},
		allocator.Request{Kind: allocator.Port, Count: 2},
	)
	fmt.Println(len(claims), claims[0].Key, claims[0].IsBound(), err)

	// Here the Service is stored. If that failed, the reservation would end by itself.
	claims, err = pool.Bind(ctx, claims...)
	fmt.Println(claims[0].IsBound(), err)

	fmt.Println(pool.Release(ctx, claims...), len(pool.Claims()))
	// Output:
	// 4 10.96.0.80 false <nil>
	// true <nil>
	// <nil> 0
}
