package rawnetlink_test

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/rawnetlink"
)

// The example lists the links of the network namespace, as "ip link" does.
func Example() {
	c, err := rawnetlink.Open(unix.NETLINK_ROUTE)
	if err != nil {
		fmt.Println(err)
		return
	}
	var r rawnetlink.Requests
	r.End(append(r.Begin(unix.RTM_GETLINK, unix.NLM_F_DUMP), make([]byte, unix.SizeofIfInfomsg)...))
	err = c.Ask(context.Background(), &r, func(payload []byte) error {
		if name := rawnetlink.Attrs(payload[unix.SizeofIfInfomsg:]).Text(unix.IFLA_IFNAME); name == "lo" {
			fmt.Println("has", name)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(c.Close())
	// Output:
	// has lo
	// <nil>
}
