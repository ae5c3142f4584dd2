package nftables

import (
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
)

// pick translates the destination to the endpoint in a random one of the first n slots. If
// that slot is empty, the rule does not match.
func pick(a *nft.Assembler, set string, n uint32, nodePort bool) nft.Statement {
	key, next := a.FrontendKey(nodePort)
	key = append(key, &expr.Numgen{Register: next, Modulus: n, Type: unix.NFT_NG_RANDOM}, nft.Find(set, nft.Reg0, nft.Reg0))
	return nft.Join(a.Encode(key...), a.DNAT())
}

// stick translates the destination to the endpoint for which the client has affinity.
func stick(a *nft.Assembler, proto uint8, set string) nft.Statement {
	s := nft.Join(a.ProtocolIs(proto), a.Encode(a.SourceAddr(nft.Reg0), nft.Find(set, nft.Reg0, nft.Reg0)))
	if a.Family == nfnetlink.IPv6 {
		// Address and port are in maps of their own: see affinityPortMap.
		port := nft.Reg0 + a.AddrRegs()
		s = append(s, a.Encode(a.SourceAddr(port), nft.Find(affinityPortMap(set), port, port))...)
	}
	return append(s, a.DNAT()...)
}

// remember stores the endpoint of the client in the affinity map.
func remember(a *nft.Assembler, set string, timeout time.Duration) nft.Statement {
	to := nft.Reg0 + a.AddrRegs()
	store := func(set string) expr.Any {
		return &expr.Dynset{SrcRegKey: nft.Reg0, SrcRegData: to, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout}
	}
	if a.Family == nfnetlink.IPv6 {
		return nft.Join(a.Encode(a.SourceAddr(nft.Reg0), a.DestAddr(to), store(set)),
			a.Encode(a.SourceAddr(nft.Reg0), nft.DestPort(to), store(affinityPortMap(set))))
	}
	return a.Encode(a.SourceAddr(nft.Reg0), a.DestAddr(to), nft.DestPort(to+a.AddrRegs()), store(set))
}

// originalVerdictMap looks up the frontend by the destination that the connection had
// before it was translated.
func originalVerdictMap(a *nft.Assembler, set string, nodePort bool) nft.Statement {
	var s nft.Statement
	next := uint32(nft.Reg0)
	if !nodePort {
		s, next = a.Tuple(nft.Original, unix.NFT_CT_DST_IP, next), next+a.AddrRegs()
	}
	return nft.Join(s, a.Encode(nft.L4Proto(next)), a.Tuple(nft.Original, unix.NFT_CT_PROTO_DST, next+1), a.Encode(nft.Verdict(set)))
}

// originalNodePortHasEndpoint matches connections whose original destination port is that
// of a node port with affinity, and whose endpoint, the source of the replies, is one of
// that node port.
func originalNodePortHasEndpoint(a *nft.Assembler) nft.Statement {
	return nft.Join(a.Encode(nft.L4Proto(nft.Reg0)),
		a.Tuple(nft.Original, unix.NFT_CT_PROTO_DST, nft.Reg0+1),
		a.Tuple(nft.Reply, unix.NFT_CT_SRC_IP, nft.Reg0+2),
		a.Tuple(nft.Reply, unix.NFT_CT_PROTO_SRC, nft.Reg0+2+a.AddrRegs()),
		a.Encode(nft.InSet(setNodePortClients)))
}

// hairpin matches packets from an endpoint to itself: by the set of hairpins, after the
// destination was translated.
func hairpin(a *nft.Assembler) nft.Statement {
	return a.Encode(a.SourceAddr(nft.Reg0), a.DestAddr(nft.Reg0+a.AddrRegs()), nft.InSet(setHairpins))
}
