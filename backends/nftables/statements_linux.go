package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers of four bytes each, as the kernel numbers them. Keys of several
// parts are put together in consecutive ones.
const reg0 = unix.NFT_REG32_00

// assembler writes rules for one family in the form in which they go to the
// kernel. The first error sticks.
type assembler struct {
	fam   family
	mark  uint32
	rules [][]byte
	err   error
}

// rule adds a rule made of statements, each of which may be several expressions.
func (a *assembler) rule(statements ...[]byte) {
	var r []byte
	for _, s := range statements {
		r = append(r, s...)
	}
	a.rules = append(a.rules, r)
}

// encode turns expressions into list elements of the netlink attribute that
// holds a rule's expressions.
func (a *assembler) encode(es ...expr.Any) []byte {
	var out []byte
	for _, e := range es {
		b, err := expr.Marshal(byte(a.fam), e)
		if err != nil && a.err == nil {
			a.err = fmt.Errorf("encoding %T: %w", e, err)
		}
		out = append(out, attribute(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)...)
	}
	return out
}

func attribute(typ uint16, payload []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, payload...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func bigEndian32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func nativeEndian32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// addrRegs is how many registers an address takes.
func (a *assembler) addrRegs() uint32 { return uint32(a.fam.addrLen() / 4) }

func (a *assembler) saddr(reg uint32) expr.Any {
	offset := uint32(12)
	if a.fam == ipv6 {
		offset = 8
	}
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(a.fam.addrLen())}
}

func (a *assembler) daddr(reg uint32) expr.Any {
	offset := uint32(16)
	if a.fam == ipv6 {
		offset = 24
	}
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(a.fam.addrLen())}
}

func l4proto(reg uint32) expr.Any { return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg} }

func dport(reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

// frontendKey loads what a frontend is found by: the destination address, but
// for node ports, the protocol and the port. It gives the next free register.
func (a *assembler) frontendKey(nodePort bool) (key []expr.Any, next uint32) {
	next = reg0
	if !nodePort {
		key, next = append(key, a.daddr(next)), next+a.addrRegs()
	}
	return append(key, l4proto(next), dport(next+1)), next + 2
}

// verdictMap looks the frontend up and does what the map says.
func (a *assembler) verdictMap(set string, nodePort bool) []byte {
	key, _ := a.frontendKey(nodePort)
	return a.encode(append(key, &expr.Lookup{SourceRegister: reg0, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set})...)
}

// pick translates the destination to the endpoint in a random one of the first
// n slots; where that slot is empty, the rule does not match.
func (a *assembler) pick(set string, n uint32, nodePort bool) []byte {
	key, next := a.frontendKey(nodePort)
	key = append(key,
		&expr.Numgen{Register: next, Modulus: n, Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: set})
	return append(a.encode(key...), a.dnat()...)
}

// dnat translates the destination to the address and port in the first registers.
func (a *assembler) dnat() []byte {
	return a.encode(&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(a.fam),
		RegAddrMin: reg0, RegProtoMin: reg0 + a.addrRegs(), Specified: true,
	})
}

// stick translates the destination to the endpoint that the client had before.
func (a *assembler) stick(proto uint8, set string) []byte {
	b := a.protocolIs(proto)
	b = append(b, a.encode(a.saddr(reg0), recall(set, reg0, reg0))...)
	if a.fam == ipv6 {
		// Address and port are in maps of their own: see affinityPortMap.
		port := reg0 + a.addrRegs()
		b = append(b, a.encode(a.saddr(port), recall(affinityPortMap(set), port, port))...)
	}
	return append(b, a.dnat()...)
}

func recall(set string, from, to uint32) expr.Any {
	return &expr.Lookup{SourceRegister: from, DestRegister: to, IsDestRegSet: true, SetName: set}
}

// remember notes the endpoint that the client has got.
func (a *assembler) remember(set string, timeout time.Duration) []byte {
	to := reg0 + a.addrRegs()
	note := func(set string) expr.Any {
		return &expr.Dynset{SrcRegKey: reg0, SrcRegData: to, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout}
	}
	if a.fam == ipv6 {
		return append(a.encode(a.saddr(reg0), a.daddr(to), note(set)),
			a.encode(a.saddr(reg0), dport(to), note(affinityPortMap(set)))...)
	}
	return a.encode(a.saddr(reg0), a.daddr(to), dport(to+a.addrRegs()), note(set))
}

// originalVerdictMap looks up the frontend that the connection was made to,
// before its destination was translated.
func (a *assembler) originalVerdictMap(set string, nodePort bool) []byte {
	var b []byte
	next := uint32(reg0)
	if !nodePort {
		b, next = a.tuple(original, unix.NFT_CT_DST_IP, next), next+a.addrRegs()
	}
	b = append(b, a.encode(l4proto(next))...)
	b = append(b, a.tuple(original, unix.NFT_CT_PROTO_DST, next+1)...)
	return append(b, a.encode(&expr.Lookup{SourceRegister: reg0, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set})...)
}

// originalNodePortHasEndpoint matches connections that were made to the number of
// a node port with affinity and have got one of its endpoints, which is where the
// replies come from.
func (a *assembler) originalNodePortHasEndpoint() []byte {
	b := a.encode(l4proto(reg0))
	b = append(b, a.tuple(original, unix.NFT_CT_PROTO_DST, reg0+1)...)
	b = append(b, a.tuple(reply, unix.NFT_CT_SRC_IP, reg0+2)...)
	b = append(b, a.tuple(reply, unix.NFT_CT_PROTO_SRC, reg0+2+a.addrRegs())...)
	return append(b, a.encode(&expr.Lookup{SourceRegister: reg0, SetName: setNodePortClients})...)
}

// The directions of a connection.
const (
	original = 0
	reply    = 1
)

// tuple loads a part of one direction of the connection. The expr package has no
// way to say so for all keys.
func (a *assembler) tuple(direction byte, key, reg uint32) []byte {
	if a.fam == ipv6 && (key == unix.NFT_CT_SRC_IP || key == unix.NFT_CT_DST_IP) {
		key += unix.NFT_CT_SRC_IP6 - unix.NFT_CT_SRC_IP
	}
	data := attribute(unix.NFTA_CT_KEY, bigEndian32(key))
	data = append(data, attribute(unix.NFTA_CT_DREG, bigEndian32(reg))...)
	data = append(data, attribute(unix.NFTA_CT_DIRECTION, []byte{direction})...)
	e := attribute(unix.NFTA_EXPR_NAME, []byte("ct\x00"))
	e = append(e, attribute(unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, data)...)
	return attribute(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e)
}

func (a *assembler) protocolIs(proto uint8) []byte {
	return a.encode(l4proto(unix.NFT_REG_1), &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{proto}})
}

// translated matches packets whose destination was translated.
func (a *assembler) translated() []byte {
	const destinationNAT = 1 << 5 // IPS_DST_NAT
	return a.encode(
		&expr.Ct{Key: expr.CtKeySTATUS, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: nativeEndian32(destinationNAT), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: make([]byte, 4)})
}

// setMark marks the packet as one to be masqueraded.
func (a *assembler) setMark() []byte { return a.changeMark(^a.mark, a.mark) }

func (a *assembler) clearMark() []byte { return a.changeMark(^uint32(0), a.mark) }

func (a *assembler) changeMark(mask, xor uint32) []byte {
	return a.encode(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: nativeEndian32(mask), Xor: nativeEndian32(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: unix.NFT_REG_1})
}

func (a *assembler) marked() []byte {
	return a.encode(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: nativeEndian32(a.mark), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: make([]byte, 4)})
}

func (a *assembler) masquerade() []byte { return a.encode(&expr.Masq{FullyRandom: true}) }

// within matches an address loaded by load against a prefix.
func (a *assembler) within(load expr.Any, p netip.Prefix, op expr.CmpOp) []byte {
	addr := a.fam.bytes(p.Addr())
	want := addr[:a.fam.addrLen()]
	mask := make([]byte, len(want))
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	es := []expr.Any{load}
	if p.Bits() < len(want)*8 {
		es = append(es, &expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: uint32(len(want)), Mask: mask, Xor: make([]byte, len(want))})
	}
	return a.encode(append(es, &expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: want})...)
}

func (a *assembler) sourceIn(p netip.Prefix) []byte {
	return a.within(a.saddr(unix.NFT_REG_1), p, expr.CmpOpEq)
}

func (a *assembler) destinationIn(p netip.Prefix) []byte {
	return a.within(a.daddr(unix.NFT_REG_1), p, expr.CmpOpEq)
}

func (a *assembler) destinationNotIn(p netip.Prefix) []byte {
	return a.within(a.daddr(unix.NFT_REG_1), p, expr.CmpOpNeq)
}

func (a *assembler) destinationInSet(set string) []byte {
	return a.encode(a.daddr(reg0), &expr.Lookup{SourceRegister: reg0, SetName: set})
}

func (a *assembler) sourceNotInSet(set string) []byte {
	return a.encode(a.saddr(reg0), &expr.Lookup{SourceRegister: reg0, SetName: set, Invert: true})
}

// sourceAndDestinationInSet finds pairs of addresses.
func (a *assembler) sourceAndDestinationInSet(set string) []byte {
	return a.encode(a.saddr(reg0), a.daddr(reg0+a.addrRegs()), &expr.Lookup{SourceRegister: reg0, SetName: set})
}

// interfaceIs matches the name of the input interface, or what it begins with.
func (a *assembler) interfaceIs(name string, prefix bool) []byte {
	data := []byte(name)
	if !prefix {
		data = make([]byte, unix.IFNAMSIZ)
		copy(data, name)
	}
	return a.encode(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG_1}, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: data})
}

// sourceIsLocal matches packets that one of the node's own addresses sends.
func (a *assembler) sourceIsLocal() []byte { return a.addressIsLocal(&expr.Fib{FlagSADDR: true}) }

// destinationIsLocal matches packets to one of the node's own addresses.
func (a *assembler) destinationIsLocal() []byte { return a.addressIsLocal(&expr.Fib{FlagDADDR: true}) }

func (a *assembler) addressIsLocal(f *expr.Fib) []byte {
	f.Register, f.ResultADDRTYPE = unix.NFT_REG_1, true
	return a.encode(f, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: nativeEndian32(unix.RTN_LOCAL)})
}

func (a *assembler) gotoChain(name string) []byte {
	return a.encode(&expr.Verdict{Kind: expr.VerdictGoto, Chain: name})
}

func (a *assembler) jump(name string) []byte {
	return a.encode(&expr.Verdict{Kind: expr.VerdictJump, Chain: name})
}

func (a *assembler) drop() []byte { return a.encode(&expr.Verdict{Kind: expr.VerdictDrop}) }

// reject answers with ICMP port unreachable.
func (a *assembler) reject() []byte {
	code := uint8(3) // ICMP_PORT_UNREACH
	if a.fam == ipv6 {
		code = 4 // ICMPV6_PORT_UNREACH
	}
	return a.encode(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code})
}

// end leads to a chain, or drops where there is none.
func (a *assembler) end(ref string) []byte {
	if ref == "" {
		return a.drop()
	}
	return a.gotoChain(ref)
}
