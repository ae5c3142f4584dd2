package nftables

import (
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
)

// DefaultAffinityClients is how many clients of a service port with session
// affinity are remembered, for each family and pool, unless [Options] say
// otherwise.
const DefaultAffinityClients = 65_536

// Options say what a backend may call its own, and bound what it keeps. The
// zero value is usable.
type Options struct {
	// Identity names the tables (one of family ip, one of family ip6), the
	// bit of the packet mark and the hook priorities.
	Identity backends.Identity
	// Families are the IP families to serve; empty means both.
	Families []v1.IPFamily
	// AffinityClients is how many clients of a service port with session
	// affinity are remembered, for each family and pool. Further ones are
	// served, but not remembered until others expire. Zero means
	// [DefaultAffinityClients].
	AffinityClients uint32
}
