package ipset

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/rawnetlink"
)

// protocolVersion is the version that all kernels since Linux 3.0 know.
const protocolVersion = 6

// Commands of the kernel.
const (
	cmdProtocol = 1
	cmdCreate   = 2
	cmdDestroy  = 3
	cmdFlush    = 4
	cmdList     = 7
	cmdAdd      = 9
	cmdDel      = 10
	cmdType     = 13
)

// Attributes of a command.
const (
	attrProtocol    = 1
	attrSetName     = 2
	attrTypeName    = 3
	attrRevision    = 4
	attrFamily      = 5
	attrFlags       = 6
	attrData        = 7
	attrEntries     = 8 // IPSET_ATTR_ADT
	attrLine        = 9
	attrRevisionMin = 10 // also IPSET_ATTR_PROTOCOL_MIN
)

// Attributes of a set and of an entry.
const (
	attrIP      = 1
	attrPort    = 4
	attrTimeout = 6
	attrProto   = 7
	attrOptions = 8 // IPSET_ATTR_CADT_FLAGS
	attrBitmask = 12
)

// Attributes of a set.
const (
	attrMaxElem  = 19
	attrNetmask  = 20
	attrElements = 24
)

// Attributes of an entry.
const (
	attrIP2     = 20
	attrCIDR2   = 21
	attrBytes   = 24
	attrPackets = 25
	attrSkbMark = 27
	attrPad     = 30
)

// Attributes of an address.
const (
	attrIPv4 = 1
	attrIPv6 = 2
)

// Flags of a set, in attrOptions.
const (
	optionCounters = 1 << 3
	optionComment  = 1 << 4
	optionForceAdd = 1 << 5
	optionSkbInfo  = 1 << 6
)

// headerLen is the length in bytes of what precedes the attributes.
const headerLen = 4

// onlyHeader makes the kernel list sets without entries.
const onlyHeader = 1 << 2

// fullMask is the mask of a mark.
const fullMask = 1<<32 - 1

// begin begins a request about a set; the empty name is none.
func begin(r *rawnetlink.Requests, command, flags uint16, set string) []byte {
	b := r.Begin(unix.NFNL_SUBSYS_IPSET<<8|command, flags)
	b = append(b, unix.AF_INET, unix.NFNETLINK_V0, 0, 0)
	b = appendUint8(b, attrProtocol, protocolVersion)
	if set != "" {
		b = rawnetlink.AppendString(b, attrSetName, set)
	}
	return b
}

// attributes returns those of a message.
func attributes(payload []byte) (rawnetlink.Attrs, error) {
	if len(payload) < headerLen {
		return nil, rawnetlink.ErrMalformed
	}
	a := rawnetlink.Attrs(payload[headerLen:])
	return a, a.Check()
}

func appendUint8(b []byte, typ uint16, v uint8) []byte {
	return append(rawnetlink.AppendHeader(b, typ, 1), v, 0, 0, 0)
}

func appendUint16(b []byte, typ, v uint16) []byte {
	b = rawnetlink.AppendHeader(b, typ|unix.NLA_F_NET_BYTEORDER, 2)
	return append(binary.BigEndian.AppendUint16(b, v), 0, 0)
}

func appendUint32(b []byte, typ uint16, v uint32) []byte {
	b = rawnetlink.AppendHeader(b, typ|unix.NLA_F_NET_BYTEORDER, 4)
	return binary.BigEndian.AppendUint32(b, v)
}

func appendUint64(b []byte, typ uint16, v uint64) []byte {
	b = rawnetlink.AppendHeader(b, typ|unix.NLA_F_NET_BYTEORDER, 8)
	return binary.BigEndian.AppendUint64(b, v)
}

func appendAddr(b []byte, typ uint16, a netip.Addr) []byte {
	b, at := rawnetlink.Nest(b, typ)
	if a.Is4() {
		v := a.As4()
		b = rawnetlink.AppendAttr(b, attrIPv4|unix.NLA_F_NET_BYTEORDER, v[:])
	} else {
		v := a.As16()
		b = rawnetlink.AppendAttr(b, attrIPv6|unix.NLA_F_NET_BYTEORDER, v[:])
	}
	rawnetlink.Close(b, at)
	return b
}

// addrOf reads an address.
func addrOf(v []byte) (netip.Addr, error) {
	typ, value, _ := (*rawnetlink.Attrs)(&v).Next()
	a, ok := netip.AddrFromSlice(value)
	if !ok || a.Is4() != (typ == attrIPv4) {
		return netip.Addr{}, rawnetlink.ErrMalformed
	}
	return a, nil
}

// uint8Of reads a number of one byte; 0 if it is missing.
func uint8Of(v []byte) uint8 {
	if len(v) == 0 {
		return 0
	}
	return v[0]
}

// uint16Of reads a number in network byte order; 0 if it is missing.
func uint16Of(v []byte) uint16 {
	if len(v) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(v)
}

// appendEntry appends an entry, of a deletion only the key.
func appendEntry(b []byte, e *Entry, del bool) []byte {
	b, at := rawnetlink.Nest(b, attrData)
	b = appendAddr(b, attrIP, e.Addr)
	if e.Protocol != 0 {
		b = appendUint16(b, attrPort, e.Port)
		b = appendUint8(b, attrProto, e.Protocol)
	}
	if e.Net.IsValid() {
		b = appendAddr(b, attrIP2, e.Net.Addr())
		b = appendUint8(b, attrCIDR2, uint8(e.Net.Bits()))
	}
	if e.Mark != 0 && !del {
		b = appendUint64(b, attrSkbMark, uint64(e.Mark)<<32|fullMask)
	}
	rawnetlink.Close(b, at)
	return b
}

// parseEntry is the inverse of appendEntry.
func parseEntry(a rawnetlink.Attrs) (e Entry, err error) {
	var second netip.Addr
	bits := -1
	for err == nil {
		typ, v, ok := a.Next()
		if !ok {
			break
		}
		switch typ {
		case attrIP:
			e.Addr, err = addrOf(v)
		case attrIP2:
			second, err = addrOf(v)
		case attrCIDR2:
			bits = int(uint8Of(v))
		case attrPort:
			e.Port = uint16Of(v)
		case attrProto:
			e.Protocol = uint8Of(v)
		case attrSkbMark:
			e.setMark(v)
		case attrBytes, attrPackets, attrPad, attrLine:
		default:
			e.Foreign = true
		}
	}
	if err != nil {
		return Entry{}, err
	}
	if second.IsValid() {
		if bits < 0 {
			bits = second.BitLen()
		}
		if e.Net = netip.PrefixFrom(second, bits); !e.Net.IsValid() {
			return Entry{}, rawnetlink.ErrMalformed
		}
	}
	return e, rawnetlink.End(a)
}

// setMark reads mark and mask.
func (e *Entry) setMark(v []byte) {
	if len(v) < 8 {
		e.Foreign = true
		return
	}
	e.Mark = binary.BigEndian.Uint32(v)
	e.Foreign = e.Foreign || e.Mark == 0 || binary.BigEndian.Uint32(v[4:]) != fullMask
}
