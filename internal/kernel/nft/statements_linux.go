package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// Reg0 is the first 4-byte register in the kernel's numbering. Keys of several fields are
// in consecutive registers.
const Reg0 = unix.NFT_REG32_00

// reg is the register of comparisons.
const reg = unix.NFT_REG_1

// The directions of a connection.
const (
	Original byte = iota
	Reply
)

// AddrRegs returns how many registers an address needs.
func (a *Assembler) AddrRegs() uint32 { return uint32(a.Family.AddrLen() / 4) }

// SourceAddr loads the source address.
func (a *Assembler) SourceAddr(register uint32) expr.Any {
	if a.Family == nfnetlink.IPv6 {
		return networkHeader(register, 8, 16)
	}
	return networkHeader(register, 12, 4)
}

// DestAddr loads the destination address.
func (a *Assembler) DestAddr(register uint32) expr.Any {
	if a.Family == nfnetlink.IPv6 {
		return networkHeader(register, 24, 16)
	}
	return networkHeader(register, 16, 4)
}

func networkHeader(register, offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

// L4Proto loads the number of the transport protocol.
func L4Proto(register uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
}

// SourcePort loads the source port.
func SourcePort(register uint32) expr.Any { return transportHeader(register, 0) }

// DestPort loads the destination port.
func DestPort(register uint32) expr.Any { return transportHeader(register, 2) }

func transportHeader(register, offset uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
}

// FrontendKey loads the key of a frontend: the destination address (except for node
// ports), the protocol and the port. It returns the next free register.
func (a *Assembler) FrontendKey(nodePort bool) (key []expr.Any, next uint32) {
	next = Reg0
	if !nodePort {
		key, next = append(key, a.DestAddr(next)), next+a.AddrRegs()
	}
	return append(key, L4Proto(next), DestPort(next+1)), next + 2
}

// VerdictMap looks up the frontend in a map and applies the verdict that it finds.
func (a *Assembler) VerdictMap(set string, nodePort bool) Statement {
	key, _ := a.FrontendKey(nodePort)
	return a.Encode(append(key, Verdict(set))...)
}

// Verdict applies the verdict that a map has for the key in the registers from Reg0.
func Verdict(set string) expr.Any {
	return &expr.Lookup{SourceRegister: Reg0, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set}
}

// Find loads the value that a map has for the key in the registers from one into those
// from another.
func Find(set string, from, to uint32) expr.Any {
	return &expr.Lookup{SourceRegister: from, DestRegister: to, IsDestRegSet: true, SetName: set}
}

// InSet matches if a set contains the key in the registers from Reg0.
func InSet(set string) expr.Any { return &expr.Lookup{SourceRegister: Reg0, SetName: set} }

// DestInSet matches destination addresses in a set.
func (a *Assembler) DestInSet(set string) Statement { return a.Encode(a.DestAddr(Reg0), InSet(set)) }

// SourceNotInSet matches source addresses that are not in a set.
func (a *Assembler) SourceNotInSet(set string) Statement {
	return a.Encode(a.SourceAddr(Reg0), &expr.Lookup{SourceRegister: Reg0, SetName: set, Invert: true})
}

// DNAT translates the destination to the address and port in the registers from Reg0.
func (a *Assembler) DNAT() Statement {
	return a.Encode(&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(a.Family),
		RegAddrMin: Reg0, RegProtoMin: Reg0 + a.AddrRegs(), Specified: true,
	})
}

// Masquerade translates the source to an address of the node.
func (a *Assembler) Masquerade() Statement { return a.Encode(&expr.Masq{FullyRandom: true}) }

// Tuple loads a field of the connection's tuple in one direction. Package expr cannot
// encode that for all keys.
func (a *Assembler) Tuple(direction byte, key, register uint32) Statement {
	if a.Family == nfnetlink.IPv6 && (key == unix.NFT_CT_SRC_IP || key == unix.NFT_CT_DST_IP) {
		key += unix.NFT_CT_SRC_IP6 - unix.NFT_CT_SRC_IP
	}
	return directed(direction, key, unix.NFTA_CT_DREG, register)
}

// SetZone sets the zone of connection tracking in which packets begin flows. The replies of these
// flows are in the default zone. It must be before connection tracking sees the packets.
func (a *Assembler) SetZone(zone uint16) Statement {
	load := a.Encode(&expr.Immediate{Register: reg, Data: binary.NativeEndian.AppendUint16(nil, zone)})
	return Join(load, directed(Original, unix.NFT_CT_ZONE, unix.NFTA_CT_SREG, reg))
}

// InZone matches packets of flows that SetZone has put into a zone.
func (a *Assembler) InZone(zone uint16) Statement {
	return a.Encode(
		&expr.Ct{Key: expr.CtKeyZONE, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binary.NativeEndian.AppendUint16(nil, zone)})
}

// directed reads or writes a key of connection tracking that each direction has.
func directed(direction byte, key uint32, attr uint16, register uint32) Statement {
	data := rawnetlink.AppendAttr(nil, unix.NFTA_CT_KEY, bigEndian(key))
	data = rawnetlink.AppendAttr(data, attr, bigEndian(register))
	data = rawnetlink.AppendAttr(data, unix.NFTA_CT_DIRECTION, []byte{direction})
	e := rawnetlink.AppendAttr(nil, unix.NFTA_EXPR_NAME, "ct\x00")
	e = rawnetlink.AppendAttr(e, unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, data)
	return rawnetlink.AppendAttr(nil, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e)
}

// ProtocolIs matches a transport protocol by its number.
func (a *Assembler) ProtocolIs(proto uint8) Statement {
	return a.Encode(L4Proto(reg), &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{proto}})
}

// Translated matches packets whose destination was translated.
func (a *Assembler) Translated() Statement {
	const destinationNAT = 1 << 5 // IPS_DST_NAT
	return a.ConnectionBits(expr.CtKeySTATUS, destinationNAT, expr.CmpOpNeq)
}

// ConnectionBits compares some bits of a field of connection tracking with zero.
func (a *Assembler) ConnectionBits(key expr.CtKey, mask uint32, op expr.CmpOp) Statement {
	return a.Encode(append([]expr.Any{&expr.Ct{Key: key, Register: reg}}, bits(mask, op)...)...)
}

// bits compares some bits of the number in the register with zero.
func bits(mask uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: nativeEndian(mask), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: reg, Data: make([]byte, 4)},
	}
}

// SetMark sets the mark of the packet.
func (a *Assembler) SetMark() Statement { return a.changeMark(^a.Mark, a.Mark) }

// ClearMark clears the mark of a packet that has it.
func (a *Assembler) ClearMark() Statement { return a.changeMark(^uint32(0), a.Mark) }

func (a *Assembler) changeMark(mask, xor uint32) Statement {
	return a.Encode(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: nativeEndian(mask), Xor: nativeEndian(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg})
}

// Marked matches packets that have the mark, or with [expr.CmpOpEq] those that do not.
func (a *Assembler) Marked(op expr.CmpOp) Statement {
	return a.Encode(append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg}}, bits(a.Mark, op)...)...)
}

// SourceIn matches source addresses in a prefix.
func (a *Assembler) SourceIn(p netip.Prefix) Statement {
	return a.within(a.SourceAddr(reg), p, expr.CmpOpEq)
}

// DestIn matches destination addresses in a prefix.
func (a *Assembler) DestIn(p netip.Prefix) Statement {
	return a.within(a.DestAddr(reg), p, expr.CmpOpEq)
}

// DestNotLoopback matches destination addresses other than loopback addresses.
func (a *Assembler) DestNotLoopback() Statement {
	loopback := netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	if a.Family == nfnetlink.IPv6 {
		loopback = netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return a.within(a.DestAddr(reg), loopback, expr.CmpOpNeq)
}

func (a *Assembler) within(load expr.Any, p netip.Prefix, op expr.CmpOp) Statement {
	want := p.Masked().Addr().AsSlice()
	mask := make([]byte, len(want))
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	es := []expr.Any{load}
	if p.Bits() < len(want)*8 {
		es = append(es, &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(want)), Mask: mask, Xor: make([]byte, len(want))})
	}
	return a.Encode(append(es, &expr.Cmp{Op: op, Register: reg, Data: want})...)
}

// Interface compares an interface of the packet, such as [expr.MetaKeyIIFNAME], with a
// name.
func (a *Assembler) Interface(key expr.MetaKey, name string, op expr.CmpOp) Statement {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return a.Encode(&expr.Meta{Key: key, Register: reg}, &expr.Cmp{Op: op, Register: reg, Data: data})
}

// InterfacePrefix matches interfaces by a prefix of their names. The key is as in [Assembler.Interface].
func (a *Assembler) InterfacePrefix(key expr.MetaKey, prefix string) Statement {
	return a.Encode(&expr.Meta{Key: key, Register: reg}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte(prefix)})
}

// noInput matches packets that the kernel passes to a hook without an input interface.
func (a *Assembler) noInput() Statement {
	return a.Encode(&expr.Meta{Key: expr.MetaKeyIIF, Register: reg}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: nativeEndian(0)})
}

// SourceIsLocal matches packets from one of the node's own addresses.
func (a *Assembler) SourceIsLocal() Statement {
	return a.isLocal(&expr.Fib{FlagSADDR: true}, expr.CmpOpEq)
}

// DestIsLocal matches packets to one of the node's own addresses.
func (a *Assembler) DestIsLocal() Statement {
	return a.isLocal(&expr.Fib{FlagDADDR: true}, expr.CmpOpEq)
}

// DestNotLocal matches packets to addresses that the node does not have.
func (a *Assembler) DestNotLocal() Statement {
	return a.isLocal(&expr.Fib{FlagDADDR: true}, expr.CmpOpNeq)
}

func (a *Assembler) isLocal(f *expr.Fib, op expr.CmpOp) Statement {
	f.Register, f.ResultADDRTYPE = reg, true
	return a.Encode(f, &expr.Cmp{Op: op, Register: reg, Data: nativeEndian(unix.RTN_LOCAL)})
}

// SourceNotLocal matches packets from addresses that the node does not have.
func (a *Assembler) SourceNotLocal() Statement {
	return a.isLocal(&expr.Fib{FlagSADDR: true}, expr.CmpOpNeq)
}

// Goto continues in a chain and does not return from it.
func (a *Assembler) Goto(chain string) Statement {
	return a.Encode(&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}

// Jump continues in a chain and returns from it.
func (a *Assembler) Jump(chain string) Statement {
	return a.Encode(&expr.Verdict{Kind: expr.VerdictJump, Chain: chain})
}

// Drop drops the packet.
func (a *Assembler) Drop() Statement { return a.Encode(&expr.Verdict{Kind: expr.VerdictDrop}) }

// SendOn sends a copy of the packet to its destination, as a packet of the node that connection
// tracking does not see.
func (a *Assembler) SendOn() Statement {
	return a.Encode(a.DestAddr(reg), &expr.Dup{RegAddr: reg})
}

// Accept accepts the packet: no other rule of the base chain sees it.
func (a *Assembler) Accept() Statement { return a.Encode(&expr.Verdict{Kind: expr.VerdictAccept}) }

// Return returns from the chain.
func (a *Assembler) Return() Statement { return a.Encode(&expr.Verdict{Kind: expr.VerdictReturn}) }

// Reject adds the rules that reject packets that match: TCP with a reset, of which the kernel
// sends any number, and everything else with the ICMP error port unreachable, of which it sends
// each client about one in a second.
func (a *Assembler) Reject(match ...Statement) {
	code := uint8(3) // ICMP_PORT_UNREACH
	if a.Family == nfnetlink.IPv6 {
		code = 4 // ICMPV6_PORT_UNREACH
	}
	matches := Join(match...)
	a.Rule(matches, a.ProtocolIs(unix.IPPROTO_TCP), a.Encode(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}))
	a.Rule(matches, a.Encode(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}))
}
