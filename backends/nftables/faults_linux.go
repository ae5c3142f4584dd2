package nftables

import (
	"fmt"

	"github.com/vipkit/vipkit/proxy"
)

// check refuses routes that pass packets: the chains of a frontend always end with a verdict.
func check(_ *proxy.Node, port *proxy.ServicePort) error {
	for i := range port.Frontends {
		f := &port.Frontends[i]
		if f.FromInside.Action == proxy.Pass || f.FromOutside.Action == proxy.Pass {
			return fmt.Errorf("frontend %v: route action pass is not supported: forward, reject or drop", f.Addr)
		}
	}
	return nil
}
