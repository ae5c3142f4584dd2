package nfnetlink

import (
	"encoding/binary"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// User data are opaque to the kernel. nft keeps in them what the kernel does
// not store: a sequence of fields, each a type byte, a length byte and a
// value. Numbers are in host byte order.

// The fields of sets.
const (
	udataSetKeyOrder     = 0
	udataSetDataOrder    = 1
	udataSetKeyTypeof    = 3
	udataSetDataTypeof   = 4
	udataSetDataInterval = 6
)

// udataTag is the field of the tag of a rule. nft does not use its number.
const udataTag = 0x76

// AppendTag appends user data by which the author of a rule recognizes it. nft keeps
// comments but not these user data when it writes a rule again, which it may have changed;
// nft ignores them when it lists rules.
func AppendTag(b, tag []byte) []byte { return appendUdata(b, udataTag, tag) }

func appendUdata(b []byte, typ byte, v []byte) []byte {
	return append(append(b, typ, byte(len(v))), v...)
}

func appendUdataUint32(b []byte, typ byte, v uint32) []byte {
	return binary.NativeEndian.AppendUint32(append(b, typ, 4), v)
}

// udataField returns the value of the first field of a type, "" if there is none. The user
// data of other programs may have any form, so malformed data is not an error.
func udataField(data string, want byte) string {
	for len(data) >= 2 {
		typ, n := data[0], int(data[1])
		data = data[2:]
		if n > len(data) {
			return ""
		}
		if typ == want {
			return data[:n]
		}
		data = data[n:]
	}
	return ""
}

// Selector is one field of the keys or data of sets: a field of a packet, or a number.
// The family of the table decides from which header an address is read.
type Selector uint8

const (
	// SourceAddr is the source address, 4 or 16 bytes.
	SourceAddr Selector = iota
	// DestAddr is the destination address, 4 or 16 bytes.
	DestAddr
	// L4Proto is the transport protocol, one byte.
	L4Proto
	// DestPort is the transport's destination port, two bytes, big-endian.
	DestPort
	// RandomIndex is a number that the expression numgen generates, four bytes in host
	// byte order.
	RandomIndex
	// verdict is the only datum of a verdict map.
	verdict
)

// The byte orders as nft records them for a key that is a single field.
const (
	orderNone = 0
	orderHost = 1
	orderBig  = 2
)

// field is nft's description of a selector.
type field struct {
	datatype uint32 // nft's number of the type, 6 bits
	size     int    // bytes
	order    uint32
	expr     uint32 // nft's number of the expression
	args     []uint32
}

// The numbers that nft assigns to data types, expressions and headers. They do not
// change, because nft reads them from user data that an earlier version wrote.
const (
	typeInteger  = 4
	typeIPv4Addr = 7
	typeIPv6Addr = 8
	typeProto    = 12
	typeService  = 13

	typeVerdict    = 0xffffff00 // NFT_DATA_VERDICT; the only one the kernel knows
	concatTypeBits = 6

	exprVerdict = 1
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23

	headerTransport = 11
	headerIPv4      = 12
	headerIPv6      = 13
)

// field describes the selector. The fields of a header are numbered in their order in
// the header, which for addresses differs by family.
func (s Selector) field(fam Family) field {
	switch s {
	case SourceAddr:
		return addrField(fam, 0)
	case DestAddr:
		return addrField(fam, 1)
	case L4Proto:
		const metaL4Proto = 16
		return field{datatype: typeProto, size: 1, order: orderHost, expr: exprMeta, args: []uint32{metaL4Proto}}
	case DestPort:
		return field{datatype: typeService, size: 2, order: orderBig, expr: exprPayload, args: []uint32{headerTransport, 2}}
	case RandomIndex:
		const random, modulus, offset = 1, 2, 0
		return field{datatype: typeInteger, size: 4, order: orderHost, expr: exprNumgen, args: []uint32{random, modulus, offset}}
	case verdict:
		return field{datatype: typeVerdict, size: 16, order: orderNone, expr: exprVerdict}
	default:
		return field{}
	}
}

func addrField(fam Family, which uint32) field {
	if fam == IPv6 {
		return field{datatype: typeIPv6Addr, size: 16, order: orderBig, expr: exprPayload, args: []uint32{headerIPv6, 8 + which}}
	}
	return field{datatype: typeIPv4Addr, size: 4, order: orderBig, expr: exprPayload, args: []uint32{headerIPv4, 11 + which}}
}

// typeof appends the field as an expression: its number, then its arguments.
func (f field) typeof(b []byte) []byte {
	b = appendUdataUint32(b, 0, f.expr)
	b = append(b, 1, byte(6*len(f.args)))
	for i, v := range f.args {
		b = appendUdataUint32(b, byte(i), v)
	}
	return b
}

// appendTypeof appends the typeof notation of a concatenation, or of a single field.
func appendTypeof(b []byte, typ byte, fam Family, sels []Selector) []byte {
	if len(sels) == 1 {
		return appendUdata(b, typ, sels[0].field(fam).typeof(nil))
	}
	var list []byte
	for i, s := range sels {
		list = appendUdata(list, byte(i), s.field(fam).typeof(nil))
	}
	expr := appendUdata(appendUdataUint32(nil, 0, exprConcat), 1, list)
	return appendUdata(b, typ, expr)
}

// byteOrder returns the byte order that nft records: concatenations have none.
func byteOrder(fam Family, sels []Selector) uint32 {
	if len(sels) == 1 {
		return sels[0].field(fam).order
	}
	return orderNone
}

// datatype returns nft's number of the concatenation: six bits for each field.
func datatype(fam Family, sels []Selector) uint32 {
	var t uint32
	for _, s := range sels {
		t = t<<concatTypeBits | s.field(fam).datatype
	}
	return t
}

// fieldsLen returns the length in bytes of a key or datum that consists of the
// selectors: one field has its own size, in a concatenation each is padded
// with zeros to a multiple of four bytes.
func fieldsLen(fam Family, sels []Selector) int {
	if len(sels) == 1 {
		return sels[0].field(fam).size
	}
	n := 0
	for _, s := range sels {
		n += rawnetlink.Align(s.field(fam).size)
	}
	return n
}
