package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"
)

// ServiceKey identifies a virtual server: by its address, or by the mark that packets have.
type ServiceKey struct {
	// Protocol is the IP protocol. It is 0 with a mark.
	Protocol uint8
	// Addr is the zero AddrPort with a mark.
	Addr netip.AddrPort
	// Mark is the mark of the packets (fwmark). 0 means that the server has an address.
	Mark uint32
	// IPv6 is the family of a server with a mark. It is false with an address.
	IPv6 bool
}

// String returns the key as messages name the server, such as "TCP 192.0.2.1:80".
func (k ServiceKey) String() string {
	if k.Mark == 0 {
		name := map[uint8]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_SCTP: "SCTP"}[k.Protocol]
		return cmp.Or(name, fmt.Sprint("protocol ", k.Protocol)) + " " + k.Addr.String()
	}
	return fmt.Sprintf("mark 0x%x (IPv6: %t)", k.Mark, k.IPv6)
}

func (k ServiceKey) isIPv6() bool { return k.IPv6 || k.Addr.Addr().Is6() }

// ServiceConfig is what can be changed of a virtual server.
type ServiceConfig struct {
	Scheduler string
	Flags     uint32
	// Timeout of persistence in seconds.
	Timeout uint32
	// Masked is set by a listing if persistence is of networks of clients.
	Masked bool
}

// hashed is a state that the kernel includes in the flags.
const hashed uint32 = 1 << 1

// Destination is a server that a virtual server sends connections to.
type Destination struct {
	// Addr identifies it within the virtual server.
	Addr netip.AddrPort
	// Weight 0 means that it gets no new connections.
	Weight uint32
	// Upper and Lower are thresholds: at Upper connections it gets no new ones, until fewer
	// than Lower are left. 0 is none.
	Upper, Lower uint32
	// Forwarding is the method; 0 is masquerading, which translates the address and the port.
	Forwarding uint32
	// Connections is set by a listing: how many there are, established or not.
	Connections uint32
}

// Service is a virtual server as the kernel lists it.
type Service struct {
	Key    ServiceKey
	Config ServiceConfig
	// Stats are totals, which the kernel updates every two seconds.
	Stats ipvs.SvcStats
}

// service returns a virtual server as moby/ipvs takes it.
func service(k ServiceKey, c ServiceConfig) *ipvs.Service {
	s := &ipvs.Service{FWMark: k.Mark, SchedName: c.Scheduler, Flags: c.Flags, Timeout: c.Timeout}
	s.AddressFamily, s.Netmask = family(k.isIPv6())
	if k.Mark == 0 {
		s.Protocol, s.Address, s.Port = uint16(k.Protocol), k.Addr.Addr().AsSlice(), k.Addr.Port()
	}
	return s
}

// family returns the number of a family, and the mask of a single client.
func family(isIPv6 bool) (number uint16, mask uint32) {
	if isIPv6 {
		return unix.AF_INET6, 128
	}
	return unix.AF_INET, ^uint32(0)
}

func serviceOf(s *ipvs.Service) Service {
	_, mask := family(s.AddressFamily == unix.AF_INET6)
	out := Service{
		Config: ServiceConfig{Scheduler: s.SchedName, Flags: s.Flags &^ hashed, Timeout: s.Timeout, Masked: s.Netmask != mask},
		Stats:  s.Stats,
	}
	if s.FWMark != 0 {
		out.Key = ServiceKey{Mark: s.FWMark, IPv6: s.AddressFamily == unix.AF_INET6}
	} else {
		a, _ := netip.AddrFromSlice(s.Address)
		out.Key = ServiceKey{Protocol: uint8(s.Protocol), Addr: netip.AddrPortFrom(a, s.Port)}
	}
	return out
}

func (d *Destination) destination() *ipvs.Destination {
	return &ipvs.Destination{
		Address: d.Addr.Addr().AsSlice(), Port: d.Addr.Port(), Weight: int(d.Weight),
		UpperThreshold: d.Upper, LowerThreshold: d.Lower, ConnectionFlags: d.Forwarding,
	}
}

func destinationOf(d *ipvs.Destination) Destination {
	a, _ := netip.AddrFromSlice(d.Address)
	return Destination{
		Addr: netip.AddrPortFrom(a, d.Port), Weight: uint32(d.Weight),
		Upper: d.UpperThreshold, Lower: d.LowerThreshold, Forwarding: d.ConnectionFlags,
		Connections: uint32(d.ActiveConnections) + uint32(d.InactiveConnections),
	}
}
