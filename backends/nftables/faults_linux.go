package nftables

import (
	"fmt"

	"github.com/vipkit/vipkit/proxy"
)

// Check implements [backends.Checker]: a chain ends with a verdict.
func (*kernel) Check(_ *proxy.Node, port *proxy.ServicePort) error {
	for i := range port.Frontends {
		f := &port.Frontends[i]
		if f.FromInside.Action == proxy.Pass || f.FromOutside.Action == proxy.Pass {
			return fmt.Errorf("frontend %v: its traffic cannot be left alone: forward, reject or drop it", f.Addr)
		}
	}
	return nil
}
