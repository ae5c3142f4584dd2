package ipvs

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/rawnetlink"
)

const version = 1 // of the family IPVS

// Attributes of a command.
const (
	attrService = iota + 1
	attrDestination
	_
	attrTimeoutTCP
	attrTimeoutTCPFin
	attrTimeoutUDP
)

// Attributes of a virtual server.
const (
	svcFamily = iota + 1
	svcProtocol
	svcAddr
	svcPort
	svcMark
	svcScheduler
	svcFlags
	svcTimeout
	svcNetmask
	svcStats
	_
	svcStats64
)

// Attributes of a destination.
const (
	dstAddr = iota + 1
	dstPort
	dstForwarding
	dstWeight
	dstUpper
	dstLower
	dstActive
	dstInactive
	_
	_
	dstFamily
)

// Attributes of statistics.
const (
	statConnections = iota + 1
	statInPackets
	statOutPackets
	statInBytes
	statOutBytes
)

// appendTo appends the payload of a request that carries out the operation.
func (o Op) appendTo(b []byte) []byte {
	b = append(b, byte(o.command), version, 0, 0)
	b, at := rawnetlink.Nest(b, attrService)
	b = appendKey(b, o.key)
	if o.hasScheduler() {
		b = appendConfig(b, o.config, o.key.isIPv6())
	}
	rawnetlink.Close(b, at)
	if o.command < newDestination {
		return b
	}
	b, at = rawnetlink.Nest(b, attrDestination)
	b = appendAddr(b, dstAddr, dstPort, o.destination.Addr)
	if is6 := o.destination.Addr.Addr().Is6(); is6 != o.key.isIPv6() {
		b = append16(b, dstFamily, familyOf(is6)) // of another program's tunnel
	}
	if o.command != delDestination {
		b = append32(b, dstForwarding, o.destination.Forwarding)
		b = append32(b, dstWeight, o.destination.Weight)
		b = append32(b, dstUpper, o.destination.Upper)
		b = append32(b, dstLower, o.destination.Lower)
	}
	rawnetlink.Close(b, at)
	return b
}

func familyOf(isIPv6 bool) uint16 {
	if isIPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func appendKey(b []byte, k ServiceKey) []byte {
	b = append16(b, svcFamily, familyOf(k.isIPv6()))
	if k.Mark != 0 {
		return append32(b, svcMark, k.Mark)
	}
	b = append16(b, svcProtocol, uint16(k.Protocol))
	return appendAddr(b, svcAddr, svcPort, k.Addr)
}

// appendAddr appends an address and its port. Without an address the kernel refuses the
// request: an empty attribute would mean 0.0.0.0.
func appendAddr(b []byte, addrType, portType uint16, a netip.AddrPort) []byte {
	switch addr := a.Addr(); {
	case addr.Is4():
		v := addr.As4()
		b = rawnetlink.AppendAttr(b, addrType, v[:])
	case addr.Is6():
		v := addr.As16()
		b = rawnetlink.AppendAttr(b, addrType, v[:])
	default:
		return b
	}
	b = rawnetlink.AppendHeader(b, portType, 2)
	return rawnetlink.Pad(binary.BigEndian.AppendUint16(b, a.Port()))
}

func appendConfig(b []byte, c ServiceConfig, isIPv6 bool) []byte {
	b = rawnetlink.AppendString(b, svcScheduler, c.Scheduler)
	b = rawnetlink.AppendHeader(b, svcFlags, 8)
	b = binary.NativeEndian.AppendUint32(b, c.Flags)
	b = binary.NativeEndian.AppendUint32(b, ^uint32(0)) // which flags to change
	b = append32(b, svcTimeout, c.Timeout)
	switch {
	case isIPv6 && c.Prefix == 0:
		return append32(b, svcNetmask, 128)
	case isIPv6:
		return append32(b, svcNetmask, uint32(c.Prefix))
	case c.Prefix > 32:
		return b // without a mask the kernel refuses the request
	}
	mask := ^uint32(0)
	if c.Prefix != 0 {
		mask <<= 32 - c.Prefix
	}
	b = rawnetlink.AppendHeader(b, svcNetmask, 4)
	return binary.BigEndian.AppendUint32(b, mask)
}

func append16(b []byte, typ, v uint16) []byte {
	b = rawnetlink.AppendHeader(b, typ, 2)
	return rawnetlink.Pad(binary.NativeEndian.AppendUint16(b, v))
}

func append32(b []byte, typ uint16, v uint32) []byte {
	b = rawnetlink.AppendHeader(b, typ, 4)
	return binary.NativeEndian.AppendUint32(b, v)
}

// number returns a number in the byte order of this machine, and 0 for another length.
func number(v []byte) uint64 {
	switch len(v) {
	case 2:
		return uint64(binary.NativeEndian.Uint16(v))
	case 4:
		return uint64(binary.NativeEndian.Uint32(v))
	case 8:
		return binary.NativeEndian.Uint64(v)
	default:
		return 0
	}
}

func number32(a rawnetlink.Attrs, typ uint16) uint32 { return uint32(number(a.Find(typ))) }

// attributes returns those of an answer, after the header of generic netlink.
func attributes(payload []byte) (rawnetlink.Attrs, error) {
	if len(payload) < unix.GENL_HDRLEN {
		return nil, rawnetlink.ErrMalformed
	}
	a := rawnetlink.Attrs(payload[unix.GENL_HDRLEN:])
	return a, a.Check()
}

func parseService(payload []byte) (s Service, err error) {
	a, err := attributes(payload)
	if err != nil {
		return s, err
	}
	a = a.Find(attrService)
	if err := a.Check(); err != nil {
		return s, err
	}
	isIPv6 := number(a.Find(svcFamily)) == unix.AF_INET6
	if s.Key.Mark = number32(a, svcMark); s.Key.Mark != 0 {
		s.Key.IPv6 = isIPv6
	} else {
		s.Key.Protocol = uint8(number(a.Find(svcProtocol)))
		if s.Key.Addr, err = parseAddr(a.Find(svcAddr), a.Find(svcPort), isIPv6); err != nil {
			return s, err
		}
	}
	s.Config = ServiceConfig{
		Scheduler: a.Text(svcScheduler),
		Timeout:   number32(a, svcTimeout),
		Prefix:    parsePrefix(a.Find(svcNetmask), isIPv6),
	}
	if v := a.Find(svcFlags); len(v) == 8 { // the flags, and a mask
		s.Config.Flags = uint32(number(v[:4])) &^ hashed
	}
	s.Stats = parseStats(a)
	return s, nil
}

func parsePrefix(v []byte, isIPv6 bool) uint8 {
	if isIPv6 {
		if n := number(v); n != 128 {
			return uint8(min(n, NoPrefix))
		}
		return 0
	}
	mask := rawnetlink.Uint32Of(v)
	n := bits.LeadingZeros32(^mask)
	switch {
	case n == 32:
		return 0
	case n == 0 || mask<<n != 0:
		return NoPrefix
	default:
		return uint8(n)
	}
}

func parseAddr(addr, port []byte, isIPv6 bool) (netip.AddrPort, error) {
	n := 4
	if isIPv6 {
		n = 16
	}
	if len(addr) < n || len(port) != 2 {
		return netip.AddrPort{}, rawnetlink.ErrMalformed
	}
	a, _ := netip.AddrFromSlice(addr[:n]) // The kernel sends IPv4 in 16 bytes too.
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)), nil
}

// parseDestination decodes a destination of a virtual server of a family: kernels before
// Linux 3.18 do not send that of the destination.
func parseDestination(payload []byte, isIPv6 bool) (d DestinationState, err error) {
	a, err := attributes(payload)
	if err != nil {
		return d, err
	}
	a = a.Find(attrDestination)
	if err := a.Check(); err != nil {
		return d, err
	}
	if v := a.Find(dstFamily); v != nil {
		isIPv6 = number(v) == unix.AF_INET6
	}
	if d.Addr, err = parseAddr(a.Find(dstAddr), a.Find(dstPort), isIPv6); err != nil {
		return d, err
	}
	d.Weight = number32(a, dstWeight)
	d.Upper, d.Lower = number32(a, dstUpper), number32(a, dstLower)
	d.Forwarding = number32(a, dstForwarding)
	d.Active, d.Inactive = number32(a, dstActive), number32(a, dstInactive)
	return d, nil
}

// parseStats prefers the statistics with 64-bit numbers, which Linux has since 4.1.
func parseStats(a rawnetlink.Attrs) Stats {
	v := rawnetlink.Attrs(a.Find(svcStats64))
	if v == nil {
		v = a.Find(svcStats)
	}
	return Stats{
		Connections: number(v.Find(statConnections)),
		InPackets:   number(v.Find(statInPackets)),
		OutPackets:  number(v.Find(statOutPackets)),
		InBytes:     number(v.Find(statInBytes)),
		OutBytes:    number(v.Find(statOutBytes)),
	}
}
