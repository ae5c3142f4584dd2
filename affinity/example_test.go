package affinity_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/vipkit/vipkit/affinity"
)

func ExampleTable() {
	table := affinity.NewTable(10*time.Minute, 1000)
	client := netip.MustParseAddr("192.0.2.7")
	table.Put(client, netip.MustParseAddrPort("10.0.0.5:8080"))
	fmt.Println(table.Get(client))

	table.Remove(netip.MustParseAddrPort("10.0.0.5:8080"))
	fmt.Println(table.Get(client))
	// Output:
	// 10.0.0.5:8080 true
	// invalid AddrPort false
}

// Tables of several service ports share a limit.
func ExampleBudget() {
	budget := affinity.NewBudget(3)
	web, dns := budget.NewTable(time.Hour, 0), budget.NewTable(time.Hour, 0)
	endpoint := netip.MustParseAddrPort("10.244.1.5:8080")
	dns.Put(netip.MustParseAddr("10.0.0.1"), endpoint)
	for _, client := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		web.Put(netip.MustParseAddr(client), endpoint)
	}
	fmt.Println(web.Len(), dns.Len())
	// Output: 2 1
}
