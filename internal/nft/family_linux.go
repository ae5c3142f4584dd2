package nft

import (
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/nfnetlink"
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

// Protocol returns the number of a transport protocol.
func Protocol(p v1.Protocol) uint8 {
	switch p {
	case v1.ProtocolUDP:
		return unix.IPPROTO_UDP
	case v1.ProtocolSCTP:
		return unix.IPPROTO_SCTP
	default:
		return unix.IPPROTO_TCP
	}
}
