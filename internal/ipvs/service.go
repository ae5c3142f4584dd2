package ipvs

import (
	"fmt"
	"net/netip"
)

// Schedulers that Linux 6.1 has. The kernel loads the module of a scheduler, ip_vs_rr for RR,
// when a virtual server first needs it.
const (
	RR    = "rr"    // round robin
	WRR   = "wrr"   // weighted round robin
	LC    = "lc"    // least connection
	WLC   = "wlc"   // weighted least connection
	LBLC  = "lblc"  // locality-based least connection
	LBLCR = "lblcr" // locality-based least connection with replication
	SH    = "sh"    // source hashing
	DH    = "dh"    // destination hashing
	SED   = "sed"   // shortest expected delay
	NQ    = "nq"    // never queue
	MH    = "mh"    // Maglev hashing
	FO    = "fo"    // weighted failover
	OVF   = "ovf"   // weighted overflow
)

// Flags of a virtual server. Those of MH are the same bits as those of SH: the scheduler
// defines what they mean.
const (
	// Persistent sends a client to the destination of its earlier connections until the
	// timeout.
	Persistent uint32 = 1 << 0
	// MHFallback, "mh-fallback" and "sh-fallback" of ipvsadm, selects another destination if
	// that of the hash has weight 0. Without it MH and SH refuse the connection. DH refuses it
	// always, and the other schedulers never.
	MHFallback uint32 = 1 << 3
	// MHPort, "mh-port" and "sh-port" of ipvsadm, includes the port of the client in the hash.
	MHPort uint32 = 1 << 4

	// hashed is a state that the kernel includes in the flags.
	hashed uint32 = 1 << 1
)

// ServiceKey identifies a virtual server: by its address, or by the mark that packets have.
type ServiceKey struct {
	// Protocol is the IP protocol, 6 (TCP), 17 (UDP) or 132 (SCTP). It is 0 with a mark.
	Protocol uint8
	// Addr is the zero AddrPort with a mark.
	Addr netip.AddrPort
	// Mark is that of the packets (fwmark). 0 means that the server has an address.
	Mark uint32
	// IPv6 is the family of a server with a mark. It is false with an address.
	IPv6 bool
}

// String returns the key as messages name the server, such as "TCP 192.0.2.1:80".
func (k ServiceKey) String() string {
	if k.Mark == 0 {
		return protocolName(k.Protocol) + " " + k.Addr.String()
	}
	family := "IPv4"
	if k.IPv6 {
		family = "IPv6"
	}
	return fmt.Sprintf("mark 0x%x of %s", k.Mark, family)
}

func protocolName(p uint8) string {
	switch p {
	case 6:
		return "TCP"
	case 17:
		return "UDP"
	case 132:
		return "SCTP"
	default:
		return fmt.Sprintf("protocol %d", p)
	}
}

func (k ServiceKey) isIPv6() bool {
	if k.Mark != 0 {
		return k.IPv6
	}
	return k.Addr.Addr().Is6()
}

// ServiceConfig is what can be changed of a virtual server.
type ServiceConfig struct {
	Scheduler string
	Flags     uint32
	// Timeout of persistence in seconds. The kernel stores it also without Persistent.
	Timeout uint32
	// Prefix is the length of the prefix by which persistence tells clients from each other.
	// 0 is the whole address. A list has NoPrefix for a mask that is not a prefix.
	Prefix uint8
}

// NoPrefix is a mask of IPv4 that is not a prefix. It can be listed and not set.
const NoPrefix = 255

// Destination is a server that a virtual server sends connections to.
type Destination struct {
	// Addr identifies it within the virtual server.
	Addr netip.AddrPort
	// Weight 0 means that it gets no new connections. The maximum is 2147483647.
	Weight uint32
	// Upper and Lower are thresholds: at Upper connections it gets no new ones, until fewer
	// than Lower are left. 0 is none, for Lower 3/4 of Upper. The maximum is 2147483647, and
	// Upper for Lower.
	Upper, Lower uint32
	// Forwarding is the method: 0 (masquerading, which translates the address and the port),
	// 1 (local), 2 (tunnel) or 3 (direct routing).
	Forwarding uint32
}

// Stats are totals since the kernel has the virtual server. The kernel updates them every two seconds,
// and not at all if the sysctl net.ipv4.vs.run_estimation is 0.
type Stats struct {
	Connections           uint64
	InPackets, OutPackets uint64
	InBytes, OutBytes     uint64
}

// Service is a virtual server as the kernel lists it.
type Service struct {
	Key    ServiceKey
	Config ServiceConfig
	Stats  Stats
}

// DestinationState is a destination as the kernel lists it.
type DestinationState struct {
	Destination
	// Active and Inactive count connections: established TCP connections are active, all
	// others inactive.
	Active, Inactive uint32
}

// Timeouts are those of idle connections in seconds: of TCP when established, of TCP after
// FIN, and of UDP.
type Timeouts struct{ TCP, TCPFin, UDP uint32 }
