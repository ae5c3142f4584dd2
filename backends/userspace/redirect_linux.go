package userspace

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// natPriority is that at which destinations are translated.
const natPriority = -100

// redirectBases gives the chains by which a table sees packets that it translates.
// They see the first packet of a connection; the others go the way of that.
func (w *chainWriter) redirectBases(priority int32) map[string]chainDefinition {
	base := func(hook nfnetlink.Hook) nfnetlink.BaseChain {
		return nfnetlink.BaseChain{Type: "nat", Hook: hook, Priority: natPriority + priority}
	}
	drop := rule{&expr.Verdict{Kind: expr.VerdictDrop}}
	jump := to(expr.VerdictJump, chainServices)
	within := doorsPrefix(w.options, w.fam)
	return map[string]chainDefinition{
		chainPrerouting: {base: base(nfnetlink.Prerouting), rules: []rule{
			// Nobody has any business there but by way of a frontend.
			join(w.destination(within, expr.CmpOpEq), drop), jump,
		}},
		chainOutput: {base: base(nfnetlink.Output), rules: []rule{
			// Late answers, whose connection nobody remembers.
			join(w.source(within), drop), jump,
		}},
	}
}

// bridged gives the chain, for [TPROXY], that translates what is marked and comes by a
// bridge. Where netfilter sees bridged packets, it sees them on the bridge, and not
// again where they leave it for this host, which takes from them the socket that TPROXY
// has given them.
func (w *chainWriter) bridged(priority int32) chainDefinition {
	accept := rule{&expr.Verdict{Kind: expr.VerdictAccept}}
	rules := []rule{
		// Nobody has any business there but by way of a frontend.
		join(w.destination(doorsPrefix(w.options, w.fam), expr.CmpOpEq), rule{&expr.Verdict{Kind: expr.VerdictDrop}}),
		join(w.comesByBridge(expr.CmpOpNeq), accept),
		join(w.marked(expr.CmpOpEq), accept),
		// Answers of endpoints on flows that connection tracking has forgotten.
		join(w.ownSocket(), accept),
	}
	for _, from := range w.fromPods() {
		rules = append(rules, w.toDoor(from, doorBridgedPod)...)
	}
	return chainDefinition{
		base:  nfnetlink.BaseChain{Type: "nat", Hook: nfnetlink.Prerouting, Priority: natPriority + priority},
		rules: append(rules, w.toDoor(nil, doorBridgedOutside)...),
	}
}

// comesByBridge compares the kind of interface that a packet has come by with a bridge.
func (s *statements) comesByBridge(op expr.CmpOp) rule {
	const inputKind = 26 // NFT_META_IIFKIND
	return interfaceName(inputKind, "bridge", op)
}

// isEstablished matches packets on connections on which both sides have been heard.
func (s *statements) isEstablished() rule {
	return rule{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: native(expr.CtStateBitESTABLISHED), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
}

// redirect translates the destination to the door for the packet's source.
func (w *chainWriter) redirect() []rule {
	rules := w.toDoor(w.sourceIsLocal(), doorNode)
	for _, from := range w.fromPods() {
		rules = append(rules, w.toDoor(from, doorPod)...)
	}
	return append(rules, w.toDoor(nil, doorOutside)...)
}

func (w *chainWriter) toDoor(from rule, d door) []rule {
	at := d.address(w.options, w.fam)
	return []rule{join(from, w.translate(protoTCP, at)), join(from, w.translate(protoUDP, at))}
}

// translate gives packets of a protocol another destination.
func (s *statements) translate(proto uint8, at netip.AddrPort) rule {
	return rule{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{proto}},
		&expr.Immediate{Register: unix.NFT_REG_1, Data: at.Addr().AsSlice()},
		&expr.Immediate{Register: unix.NFT_REG_2, Data: binary.BigEndian.AppendUint16(nil, at.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(s.fam), RegAddrMin: unix.NFT_REG_1, RegProtoMin: unix.NFT_REG_2},
	}
}
