package nft

import (
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// Families returns the families of tables, one for each IP family.
func Families() []nfnetlink.Family { return []nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6} }

// FamilyOf returns the family of tables for an IP family.
func FamilyOf(f v1.IPFamily) nfnetlink.Family {
	if f == v1.IPv6Protocol {
		return nfnetlink.IPv6
	}
	return nfnetlink.IPv4
}
