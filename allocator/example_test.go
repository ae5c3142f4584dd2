package allocator_test

import (
	"errors"
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
	dns := allocator.AddrKey(netip.MustParseAddr("10.96.0.10"))
	fmt.Println(services.Allocate("kube-system/kube-dns", dns))
	fmt.Println(services.Allocate("default/other", dns))

	key, err := services.AllocateNext("default/web")
	offset, _ := services.Offset(key)
	fmt.Println("above the lower band:", offset >= allocator.IPBand(256), err)

	err = services.Release("default/web", dns)
	fmt.Println(errors.Is(err, allocator.ErrNotOwner), services.Stats().Used)
	// Output:
	// <nil>
	// 10.96.0.10 is already allocated to "kube-system/kube-dns"
	// above the lower band: true <nil>
	// true 2
}
