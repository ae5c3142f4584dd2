package ipaddr

import v1 "k8s.io/api/core/v1"

// Numbers of transport protocols in IP headers.
const (
	TCP  uint8 = 6
	UDP  uint8 = 17
	SCTP uint8 = 132
)

// ProtocolNumber returns the number of a transport protocol. It returns 0, which no packet to a
// port has, for any protocol that Services cannot have.
func ProtocolNumber(p v1.Protocol) uint8 {
	switch p {
	case v1.ProtocolTCP:
		return TCP
	case v1.ProtocolUDP:
		return UDP
	case v1.ProtocolSCTP:
		return SCTP
	}
	return 0
}
