package iptables

import (
	"fmt"

	"github.com/vipkit/vipkit/proxy"
)

// fault says why a service port cannot be programmed, though some dataplane could: why
// affinity cannot be had as it was asked for, or what is missing here.
func (r *renderer) fault(port *proxy.ServicePort) error {
	if port.Name.Family != r.family {
		return nil
	}
	if err := r.unserved(port); err != nil {
		return fmt.Errorf("%w: %w", proxy.ErrUnsupported, err)
	}
	want, have := r.options.AffinityClients, r.remembers
	if want <= have || !port.Affinity.Enabled() {
		return nil
	}
	return fmt.Errorf("session affinity: the kernel remembers %d clients of an endpoint, not %d: "+
		"load the module xt_recent with ip_list_tot=%d", have, want, want)
}
