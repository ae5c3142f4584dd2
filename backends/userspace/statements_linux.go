package userspace

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// rule is a rule, or some of its statements.
type rule []expr.Any

func join(parts ...rule) rule {
	var all rule
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func to(kind expr.VerdictKind, chain string) rule {
	return rule{&expr.Verdict{Kind: kind, Chain: chain}}
}

// statements writes statements for one family.
type statements struct {
	fam  nfnetlink.Family
	mark uint32
}

const (
	reg  = unix.NFT_REG_1
	reg0 = unix.NFT_REG32_00

	sourcePort, destinationPort              = 0, 2
	originalDirection, replyDirection        = 0, 1
	firstSourcePort, sourcePorts      uint16 = 10_240, 20_000
)

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func (s *statements) addrLen() uint32 { return uint32(addrLen(s.fam)) }

func (s *statements) addr(register uint32, source bool) expr.Any {
	offset := uint32(16)
	switch {
	case s.fam == nfnetlink.IPv6 && source:
		offset = 8
	case s.fam == nfnetlink.IPv6:
		offset = 24
	case source:
		offset = 12
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: s.addrLen()}
}

func port(register uint32, offset uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
}

// verdictMap looks a frontend up, or a node port.
func (s *statements) verdictMap(set string, nodePort bool) rule {
	var load rule
	next := uint32(reg0)
	if !nodePort {
		load, next = append(load, s.addr(next, false)), next+s.addrLen()/4
	}
	return append(load, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next}, port(next+1, destinationPort), &expr.Lookup{SourceRegister: reg0, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set})
}

func (s *statements) destinationInSet(set string) rule {
	return rule{s.addr(reg0, false), &expr.Lookup{SourceRegister: reg0, SetName: set}}
}

func (s *statements) source(p netip.Prefix) rule {
	return s.within(s.addr(reg, true), p, expr.CmpOpEq)
}

func (s *statements) destination(p netip.Prefix, op expr.CmpOp) rule {
	return s.within(s.addr(reg, false), p, op)
}

func (s *statements) within(load expr.Any, p netip.Prefix, op expr.CmpOp) rule {
	want := p.Masked().Addr().AsSlice()
	mask := make([]byte, len(want))
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	r := rule{load}
	if p.Bits() < 8*len(want) {
		r = append(r, &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(want)), Mask: mask, Xor: make([]byte, len(want))})
	}
	return append(r, &expr.Cmp{Op: op, Register: reg, Data: want})
}

func (s *statements) loopback() netip.Prefix {
	if s.fam == nfnetlink.IPv6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}

func (s *statements) sourceIsLocal() rule { return isLocal(&expr.Fib{FlagSADDR: true}) }

func (s *statements) destinationIsLocal() rule { return isLocal(&expr.Fib{FlagDADDR: true}) }

func isLocal(f *expr.Fib) rule {
	f.Register, f.ResultADDRTYPE = reg, true
	return rule{f, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: native(unix.RTN_LOCAL)}}
}

func (s *statements) interfaceIs(name string, op expr.CmpOp) rule {
	return interfaceName(expr.MetaKeyIIFNAME, name, op)
}

func (s *statements) leavesBy(name string, op expr.CmpOp) rule {
	return interfaceName(expr.MetaKeyOIFNAME, name, op)
}

func interfaceName(k expr.MetaKey, name string, op expr.CmpOp) rule {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return rule{&expr.Meta{Key: k, Register: reg}, &expr.Cmp{Op: op, Register: reg, Data: data}}
}

func (s *statements) interfacePrefix(name string) rule {
	return rule{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte(name)}}
}

// change sets the bit in what is in the register.
func (s *statements) change() expr.Any {
	return &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(^s.mark), Xor: native(s.mark)}
}

// compare compares the bit in the register with zero.
func (s *statements) compare(op expr.CmpOp) rule {
	return rule{
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(s.mark), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: reg, Data: make([]byte, 4)},
	}
}

func (s *statements) setMark() rule {
	return rule{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg}, s.change(), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg}}
}

// marked matches packets whose bit is not zero (CmpOpNeq) or zero (CmpOpEq).
func (s *statements) marked(op expr.CmpOp) rule {
	return append(rule{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg}}, s.compare(op)...)
}

func (s *statements) setConnectionMark() rule {
	return rule{&expr.Ct{Key: expr.CtKeyMARK, Register: reg}, s.change(), &expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: reg}}
}

// connectionMarked does the same for the mark of connection tracking.
func (s *statements) connectionMarked(op expr.CmpOp) rule {
	return append(rule{&expr.Ct{Key: expr.CtKeyMARK, Register: reg}}, s.compare(op)...)
}

func (s *statements) direction(d byte) rule {
	return rule{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{d}}}
}

// portInRange matches the ports that the backend reaches endpoints from.
func (s *statements) portInRange(offset uint32) rule {
	first, last := binary.BigEndian.AppendUint16(nil, firstSourcePort), binary.BigEndian.AppendUint16(nil, firstSourcePort+sourcePorts-1)
	return rule{port(reg, offset), &expr.Range{Op: expr.CmpOpEq, Register: reg, FromData: first, ToData: last}}
}

// transparentSocket matches packets of a socket that may have others' addresses.
func (s *statements) transparentSocket() rule {
	return rule{&expr.Socket{Key: expr.SocketKeyTransparent, Register: reg}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{1}}}
}

// ownSocket matches packets to such a socket that belongs to one connection.
// One that listens everywhere is somebody else's, and one that is about to end
// does not match either.
func (s *statements) ownSocket() rule { return append(s.transparentSocket(), s.wildcard(0)...) }

// namelessSocket matches packets of such a socket without an address: it sends in
// the name of others, as that for answers to datagrams does.
func (s *statements) namelessSocket() rule { return append(s.transparentSocket(), s.wildcard(1)...) }

func (s *statements) wildcard(is byte) rule {
	return rule{&expr.Socket{Key: expr.SocketKeyWildcard, Register: reg}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{is}}}
}

// transparent hands a packet of a protocol to the socket at an address.
func (s *statements) transparent(proto uint8, at netip.AddrPort) rule {
	return rule{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{proto}},
		&expr.Immediate{Register: unix.NFT_REG_1, Data: at.Addr().AsSlice()},
		&expr.Immediate{Register: unix.NFT_REG_2, Data: binary.BigEndian.AppendUint16(nil, at.Port())},
		&expr.TProxy{Family: byte(s.fam), RegAddr: unix.NFT_REG_1, RegPort: unix.NFT_REG_2},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// reject answers with ICMP port unreachable.
func (s *statements) reject() rule {
	code := uint8(3)
	if s.fam == nfnetlink.IPv6 {
		code = 4
	}
	return rule{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
}
