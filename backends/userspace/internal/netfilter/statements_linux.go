package netfilter

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// Ports from which the backend reaches endpoints with TPROXY.
const firstSourcePort, sourcePorts = 10_240, 20_000

// borrowed is the zone of connection tracking of flows that backends begin from addresses of clients.
// All identities have it in common, since only the first one can set the zone of a packet.
const borrowed uint16 = 7690

const reg = unix.NFT_REG_1

// chainWriter writes the rules of one chain.
type chainWriter struct {
	*nft.Assembler
	*renderer
	node *proxy.Node
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// equals matches if an expression loads the given bytes.
func (w chainWriter) equals(load expr.Any, data ...byte) nft.Statement {
	return w.Encode(load, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data})
}

// original and reply match packets by the direction of their connection.
func (w chainWriter) original() nft.Statement { return w.direction(nft.Original) }
func (w chainWriter) reply() nft.Statement    { return w.direction(nft.Reply) }

func (w chainWriter) direction(d byte) nft.Statement {
	return w.equals(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg}, d)
}

// answer matches replies to flows that the backend has begun from an address of a client.
func (w chainWriter) answer() nft.Statement { return nft.Join(w.reply(), w.InZone(borrowed)) }

// replyBeside matches replies that are neither to the node nor on a connection of the backend:
// to flows that a client has begun itself.
func (w chainWriter) replyBeside() nft.Statement {
	return nft.Join(w.reply(), w.connectionMarked(expr.CmpOpEq), w.DestNotLocal())
}

// sourceTranslated matches packets of connections whose source is translated, as by masquerading.
func (w chainWriter) sourceTranslated() nft.Statement {
	const srcNAT = 1 << 4 // IPS_SRC_NAT
	return w.ConnectionBits(expr.CtKeySTATUS, srcNAT, expr.CmpOpNeq)
}

func (w chainWriter) setConnectionMark() nft.Statement {
	return w.Encode(
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(^w.Mark), Xor: native(w.Mark)},
		&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: reg})
}

// connectionMarked matches packets on connections that have the mark, or with
// [expr.CmpOpEq] those that do not.
func (w chainWriter) connectionMarked(op expr.CmpOp) nft.Statement {
	return w.ConnectionBits(expr.CtKeyMARK, w.Mark, op)
}

// connectionState matches packets in one of some states of connection tracking, such as
// [expr.CtStateBitESTABLISHED]: of connections that have seen packets of both sides.
func (w chainWriter) connectionState(states uint32) nft.Statement {
	return w.ConnectionBits(expr.CtKeySTATE, states, expr.CmpOpNeq)
}

// isPortless matches packets that are neither of TCP nor of UDP. In the place of ports they may
// have anything, such as a checksum.
func (w chainWriter) isPortless() nft.Statement {
	return w.Encode(nft.L4Proto(reg),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte{unix.IPPROTO_UDP}})
}

// ownPort matches the ports from which the backend reaches endpoints, of TCP and UDP.
func (w chainWriter) ownPort(load expr.Any) nft.Statement {
	first, last := binary.BigEndian.AppendUint16(nil, firstSourcePort), binary.BigEndian.AppendUint16(nil, firstSourcePort+sourcePorts-1)
	return w.Encode(load, &expr.Range{Op: expr.CmpOpEq, Register: reg, FromData: first, ToData: last})
}

// sourceWithin matches source addresses in a range.
func (w chainWriter) sourceWithin(r ipaddr.Range) nft.Statement {
	return w.Encode(w.SourceAddr(reg), &expr.Range{Op: expr.CmpOpEq, Register: reg, FromData: r.First.AsSlice(), ToData: r.Last.AsSlice()})
}

// transparentSocket matches packets of transparent sockets.
func (w chainWriter) transparentSocket() nft.Statement {
	return w.equals(&expr.Socket{Key: expr.SocketKeyTransparent, Register: reg}, 1)
}

// ownSocket matches packets to a transparent socket with an address. A transparent socket that
// listens at every address belongs to another program. Closing sockets do not match either.
func (w chainWriter) ownSocket() nft.Statement {
	return nft.Join(w.transparentSocket(), w.equals(&expr.Socket{Key: expr.SocketKeyWildcard, Register: reg}, 0))
}

// namelessSocket matches packets of a transparent socket without an address, such as the one of
// [replier], which sends from the addresses of frontends.
func (w chainWriter) namelessSocket() nft.Statement {
	return nft.Join(w.transparentSocket(), w.equals(&expr.Socket{Key: expr.SocketKeyWildcard, Register: reg}, 1))
}

// inputKind is the meta key of the kind of the input interface.
const inputKind expr.MetaKey = 26 // NFT_META_IIFKIND

// comesByBridge matches packets that arrive by a bridge, or with [expr.CmpOpNeq] all others.
func (w chainWriter) comesByBridge(op expr.CmpOp) nft.Statement {
	return w.Interface(inputKind, "bridge", op)
}

// handOver adds rules that deliver packets from a source to a listener by TPROXY, with their
// destination unchanged.
func (w chainWriter) handOver(from nft.Statement, l listener) {
	w.toListener(from, l, &expr.TProxy{Family: byte(w.Family), RegAddr: unix.NFT_REG_1, RegPort: unix.NFT_REG_2}, &expr.Verdict{Kind: expr.VerdictAccept})
}

// translate adds rules that translate the destination of packets from a source to a listener.
func (w chainWriter) translate(from nft.Statement, l listener) {
	w.toListener(from, l, &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(w.Family), RegAddrMin: unix.NFT_REG_1, RegProtoMin: unix.NFT_REG_2})
}

// toListener adds rules, for TCP and UDP, that load the address and port of a listener and then
// apply further expressions. A nil from matches all sources.
func (w chainWriter) toListener(from nft.Statement, l listener, then ...expr.Any) {
	at := w.address(l, familyOf(w.Family))
	load := w.Encode(append([]expr.Any{
		&expr.Immediate{Register: unix.NFT_REG_1, Data: at.Addr().AsSlice()},
		&expr.Immediate{Register: unix.NFT_REG_2, Data: binary.BigEndian.AppendUint16(nil, at.Port())},
	}, then...)...)
	for _, protocol := range [...]uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		w.Rule(from, w.ProtocolIs(protocol), load)
	}
}

// translatedTo returns the prefix of the listeners to which destinations are translated.
func (w chainWriter) translatedTo() netip.Prefix { return w.renderer.translatedTo(familyOf(w.Family)) }
