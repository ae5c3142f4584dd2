package ipvs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vipkit/vipkit/internal/ipvs"
)

// The example lists what "ipvsadm -Ln" lists. It has no expected output, because the kernel
// may have no IPVS.
func Example() {
	ctx := context.Background()
	c, err := ipvs.Open()
	if errors.Is(err, ipvs.ErrMissing) {
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	services, err := c.Services(ctx)
	for _, s := range services {
		fmt.Println(s.Key, s.Config.Scheduler)
		destinations, err := c.Destinations(ctx, s.Key)
		for _, d := range destinations {
			fmt.Println("->", d.Addr, d.Weight, d.Active)
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(errors.Join(err, c.Close()))
}

// A web server at a virtual address gets a new destination, and an old one gets no new
// connections. The operations that failed say so.
func ExampleConn_Do() {
	c, err := ipvs.Open()
	if err != nil {
		fmt.Println(err)
		return
	}
	web := ipvs.ServiceKey{Protocol: 6, Addr: netip.MustParseAddrPort("192.0.2.1:80")}
	failed, err := c.Do(context.Background(), []ipvs.Op{
		ipvs.AddDestination(web, ipvs.Destination{Addr: netip.MustParseAddrPort("10.0.0.2:8080"), Weight: 1}),
		ipvs.SetDestination(web, ipvs.Destination{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Weight: 0}),
	})
	for _, f := range failed {
		fmt.Println(f.Index, &f)
	}
	fmt.Println(errors.Join(err, c.Close()))
}
