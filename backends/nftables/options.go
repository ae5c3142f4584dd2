package nftables

import (
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
)

// Options configure a backend. The zero value is usable.
type Options struct {
	// Identity names the tables (one of family ip, one of family ip6), the
	// bit of the packet mark and the hook priorities.
	Identity backends.Identity
	// Families are the IP families to serve; empty means both.
	Families []v1.IPFamily
}
