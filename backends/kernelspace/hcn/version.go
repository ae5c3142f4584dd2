package hcn

import (
	"cmp"
	"fmt"
)

// Version is the version of the service. Each release of Windows has one major number, and gets
// features of later ones with a greater minor number.
type Version struct {
	// Major and Minor are the numbers before and after the dot.
	Major, Minor int
}

// String returns major.minor.
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Features is what a version can do, as far as a backend needs it.
type Features struct {
	// V2 is the API of this package.
	V2 bool
	// RemoteSubnet is needed by overlay networks.
	RemoteSubnet bool
	// DSR is direct server return ([LoadBalancerFlags]).
	DSR bool
	// DualStack: load balancers and endpoints of IPv6.
	DualStack bool
	// SessionAffinity is the distribution [BySource].
	SessionAffinity bool
	// Modify is [LoadBalancerWriter.ModifyLoadBalancer].
	Modify bool
}

// Features returns what a version can do.
func (v Version) Features() Features {
	return Features{
		V2:              v.since(9, 2),
		RemoteSubnet:    v.since(9, 2),
		DSR:             v.within(9, 3) || v.since(10, 2),
		DualStack:       v.since(11, 10),
		SessionAffinity: v.since(12, 0),
		Modify:          v.within(15, 5) || v.since(16, 0),
	}
}

// since reports whether v is at least major.minor.
func (v Version) since(major, minor int) bool {
	return cmp.Or(cmp.Compare(v.Major, major), cmp.Compare(v.Minor, minor)) >= 0
}

// within reports whether v is a major version with at least a minor one.
func (v Version) within(major, minor int) bool { return v.Major == major && v.Minor >= minor }
