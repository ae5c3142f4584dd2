package netfilter

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// Names of the chains that each table has, beside the chains of verdictChain.
const (
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPostrouting = "postrouting"
	chainBridged     = "bridged"
	chainCaptured    = "captured"
	chainBorrowing   = "borrowing"
	chainBeside      = "beside"
	chainServices    = "services"

	chainUnservedPrerouting = "unserved-prerouting"
	chainUnservedOutput     = "unserved-output"
	chainUnservedFlows      = "unserved-flows"

	// With TPROXY, packets that are neither of TCP nor of UDP traverse these.
	chainPortlessIncoming = "portless-incoming"
	chainPortlessOutgoing = "portless-outgoing"
)

// Levels of chains: a chain jumps only to chains of lower levels.
const (
	levelAction uint8 = iota
	levelSource
	levelServices
	levelPortless
	levelBase
	levelForeign
)

// Priorities of base chains.
const (
	// capturePriority is before packets are routed and other programs translate them, and
	// after other programs mark them, mostly at -150: they do not overwrite the mark.
	capturePriority = -140
	// natPriority is the priority at which destinations are translated.
	natPriority = -100
	// zonePriority is before connection tracking, at -200, and after other programs exempt
	// packets from it, mostly at -300.
	zonePriority = -250
)

// baseChain is a chain that packets traverse at a hook of the kernel.
type baseChain struct {
	name  string
	at    nfnetlink.BaseChain
	rules func(chainWriter)
}

// bases returns the base chains of the capture.
func (r *renderer) bases() []baseChain {
	at := func(kind string, hook nfnetlink.Hook, priority int32) nfnetlink.BaseChain {
		return nfnetlink.BaseChain{Type: kind, Hook: hook, Priority: priority + r.Identity.Priority}
	}
	fixed := func(kind string, hook nfnetlink.Hook, priority int32) nfnetlink.BaseChain {
		return nfnetlink.BaseChain{Type: kind, Hook: hook, Priority: priority}
	}
	unserved := func(kind string, hook nfnetlink.Hook) nfnetlink.BaseChain {
		return fixed(kind, hook, nft.PriorityUnserved)
	}
	if r.Redirect {
		return []baseChain{
			{chainPrerouting, at("nat", nfnetlink.Prerouting, natPriority), chainWriter.redirectIncoming},
			{chainOutput, at("nat", nfnetlink.Output, natPriority), chainWriter.redirectOutgoing},
			{chainUnservedPrerouting, unserved("nat", nfnetlink.Prerouting), chainWriter.unserved},
			{chainUnservedOutput, unserved("nat", nfnetlink.Output), chainWriter.unservedOutput},
		}
	}
	return []baseChain{
		{chainPrerouting, at("filter", nfnetlink.Prerouting, capturePriority), chainWriter.prerouting},
		{chainOutput, at("route", nfnetlink.Output, capturePriority), chainWriter.output},
		// Chains of type nat are evaluated when destinations are translated, whatever their priorities,
		// which only order them: these two come before the chains of other programs.
		{chainBridged, at("nat", nfnetlink.Prerouting, capturePriority), chainWriter.bridged},
		{chainCaptured, at("nat", nfnetlink.Output, capturePriority), chainWriter.captured},
		{chainPostrouting, at("filter", nfnetlink.Postrouting, capturePriority), chainWriter.postrouting},
		// They must stay between connection tracking, translation, and the chains of other programs.
		{chainBorrowing, fixed("filter", nfnetlink.Output, zonePriority), chainWriter.borrowing},
		{chainBeside, fixed("filter", nfnetlink.Prerouting, natPriority+1), chainWriter.beside},
		{chainUnservedPrerouting, unserved("filter", nfnetlink.Prerouting), chainWriter.unserved},
		{chainUnservedOutput, unserved("nat", nfnetlink.Output), chainWriter.unservedOutput},
		{chainUnservedFlows, unserved("filter", nfnetlink.Output), chainWriter.unservedFlows},
	}
}

// static appends the objects of a table that do not depend on Services.
func (r *renderer) static(node *proxy.Node, f v1.IPFamily, out []Object) []Object {
	fam := nft.FamilyOf(f)
	out = append(out, Object{Key: Key{kind: kindRouting, fam: fam}, Value: Value{routing: routingComplete}}, Object{Key: Key{kind: kindTable, fam: fam}})
	for _, s := range sets() {
		out = append(out, Object{Key: Key{kind: kindSet, fam: fam, name: s.Name}, Value: Value{definition: nft.SetHash(s.Spec(fam))}, Payload: &s})
	}
	return append(out, r.chains(node, f)...)
}

// chains returns the chains of a table that do not depend on Services.
func (r *renderer) chains(node *proxy.Node, f v1.IPFamily) (all []Object) {
	add := func(level uint8, name string, at nfnetlink.BaseChain, rules func(chainWriter)) {
		k := Key{kind: kindChain, fam: nft.FamilyOf(f), level: level, name: name}
		all = append(all, r.chain(k, at, func(a *nft.Assembler) { rules(chainWriter{a, r, node}) }))
	}
	regular := nfnetlink.BaseChain{}
	for _, inside := range actions() {
		add(levelAction, verdictChain(inside, inside), regular, func(w chainWriter) { w.action(inside) })
		for _, outside := range actions() {
			if inside != outside {
				add(levelSource, verdictChain(inside, outside), regular, func(w chainWriter) { w.bySource(inside, outside) })
			}
		}
	}
	add(levelServices, chainServices, regular, chainWriter.services)
	if !r.Redirect {
		add(levelPortless, chainPortlessIncoming, regular, chainWriter.portlessIncoming)
		add(levelPortless, chainPortlessOutgoing, regular, chainWriter.portlessOutgoing)
	}
	for _, b := range r.bases() {
		add(levelBase, b.name, b.at, b.rules)
	}
	return all
}

// chain returns the object of a chain.
func (r *renderer) chain(k Key, at nfnetlink.BaseChain, rules func(*nft.Assembler)) Object {
	c := &nft.Chain{Base: at, Mark: r.Identity.Mark, Rules: rules}
	return Object{Key: k, Value: Value{definition: c.Hash(k.fam)}, Payload: c}
}

// action writes the rules that apply an action to all packets. For TPROXY, captured packets are
// marked only; the base chain delivers them.
func (w chainWriter) action(a proxy.Action) {
	switch a {
	case proxy.Forward:
		if w.Redirect {
			w.redirectPackets()
		} else {
			w.Rule(w.SetMark())
		}
	case proxy.Reject:
		w.Reject()
	case proxy.Drop:
		w.Rule(w.Drop())
	case proxy.Pass:
		w.Rule(w.Return())
	}
}

// redirectPackets translates the destination to the listener for the packet's source.
func (w chainWriter) redirectPackets() {
	w.translate(w.SourceIsLocal(), listenerNode)
	for _, from := range w.FromPods(w.node.LocalTraffic) {
		w.translate(from, listenerPod)
	}
	w.translate(nil, listenerOutside)
}

// bySource applies one action to traffic of pods and of the node itself, and another one to
// all other traffic.
func (w chainWriter) bySource(inside, outside proxy.Action) {
	in := w.Goto(verdictChain(inside, inside))
	for _, from := range w.FromPods(w.node.LocalTraffic) {
		w.Rule(from, in)
	}
	w.Rule(w.SourceIsLocal(), in)
	w.Rule(w.Goto(verdictChain(outside, outside)))
}

// services looks up the frontend of a packet.
func (w chainWriter) services() {
	w.Rule(w.VerdictMap(setRestricted, false))
	w.Rule(w.VerdictMap(setFrontends, false))
	w.NodePorts(w.node.NodePorts, setNodePorts)
}

// unserved sees packets after all translation. Chain prerouting or output has marked captured
// packets, and another instance gives those that it captures a transparent socket. Neither a reply, nor an
// ICMP error about a connection, is a packet to a frontend, and untracked packets are to pass a proxy.
func (w chainWriter) unserved() {
	if !w.Redirect {
		w.Rule(w.Marked(expr.CmpOpNeq), w.Accept())
		w.Rule(w.ownSocket(), w.Accept())
		w.Rule(w.connectionState(expr.CtStateBitESTABLISHED), w.transparentSocket(), w.Accept()) // a closing one, too
		w.Rule(w.reply(), w.Accept())
		w.Rule(w.connectionState(expr.CtStateBitRELATED|expr.CtStateBitUNTRACKED), w.Accept())
	}
	w.Unserved(setClusterIPs, w.node.ServiceCIDRs)
}

// unservedOutput sees the first packets of connections that nobody has captured or translated. It passes
// packets of the backend to an endpoint with an address of a Service.
func (w chainWriter) unservedOutput() {
	if !w.Redirect {
		w.Rule(w.ownPort(nft.SourcePort(reg)), w.transparentSocket(), w.Accept())
	}
	w.Unserved(setClusterIPs, w.node.ServiceCIDRs)
}

// unservedFlows sees later packets of the node, such as datagrams of a UDP flow whose Service is gone. Packets
// that another instance has captured are not known otherwise than by having a mark.
func (w chainWriter) unservedFlows() {
	w.Rule(w.Encode(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg}, &expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: native(0)}), w.Accept())
	w.Rule(w.ownPort(nft.SourcePort(reg)), w.transparentSocket(), w.Accept())
	w.unserved()
}

// prerouting delivers packets to the sockets of the backend: first packets of established
// connections, then new ones, which go to listeners. While no backend listens, it drops packets
// that it would capture.
func (w chainWriter) prerouting() {
	destPort, accept := w.ownPort(nft.DestPort(reg)), w.Accept()
	w.Rule(w.isPortless(), w.Goto(chainPortlessIncoming))
	w.Rule(w.answer(), w.SetMark(), accept)
	w.Rule(destPort, w.replyBeside(), accept)
	// The same, where the flow is masqueraded: chain beside sees it after its translation. The kernel
	// looks up sockets by what the translation leads to.
	w.Rule(destPort, w.reply(), w.connectionMarked(expr.CmpOpEq), w.sourceTranslated(), accept)
	// Answers of endpoints to addresses of the node, or on flows that connection tracking has
	// forgotten. The rule is for ports that clients rarely use.
	w.Rule(destPort, w.ownSocket(), w.SetMark(), accept)
	// A reply begins no connection, unless connection tracking had forgotten the connection
	// and considers an answer of the backend as the first packet.
	w.Rule(w.reply(), w.connectionMarked(expr.CmpOpEq), accept)
	// Packets of clients on their connections, also to removed frontends.
	w.Rule(w.ownSocket(), w.SetMark(), accept)
	// The same, of connections that chain bridged has translated.
	w.Rule(w.comesByBridge(expr.CmpOpEq), w.connectionState(expr.CtStateBitESTABLISHED), accept)
	// A backend of another kind has served the connection first: sockets of this backend know nothing of it.
	w.Rule(w.original(), w.Translated(), accept)
	w.Rule(w.connectionState(expr.CtStateBitUNTRACKED), accept)
	// Chain output has decided on all packets from the node to itself.
	w.Rule(w.Interface(expr.MetaKeyIIFNAME, "lo", expr.CmpOpNeq), w.Jump(chainServices))
	w.Rule(w.Marked(expr.CmpOpEq), accept)
	// Chain bridged translates these later.
	w.Rule(w.comesByBridge(expr.CmpOpEq), accept)
	w.handOver(w.Interface(expr.MetaKeyIIFNAME, "lo", expr.CmpOpEq), listenerNode)
	for _, from := range w.FromPods(w.node.LocalTraffic) {
		w.handOver(from, listenerPod)
	}
	w.handOver(nil, listenerOutside)
	w.Rule(w.Drop())
}

// output marks packets of the node itself, so that they are routed to this host and traverse
// prerouting. It does not mark packets of the backend.
func (w chainWriter) output() {
	own, accept := nft.Join(w.ownPort(nft.SourcePort(reg)), w.transparentSocket()), w.Accept()
	w.Rule(w.isPortless(), w.Goto(chainPortlessOutgoing))
	// Late answers on translated connections that connection tracking has forgotten.
	w.Rule(w.original(), w.SourceIn(w.translatedTo()), w.Drop())
	// An answer to a datagram whose flow connection tracking has forgotten: it seems to begin
	// a flow, of which the client's next datagram seems to be a reply.
	w.Rule(w.original(), w.namelessSocket(), w.setConnectionMark())
	// The mark tells the backend's connections from clients' own also where another program
	// has put all packets into a zone.
	w.Rule(w.connectionState(expr.CtStateBitNEW), own, w.setConnectionMark(), accept)
	w.Rule(own, accept)
	// An answer on a connection that connection tracking has forgotten. The client's next
	// packet seems to be a reply, too.
	w.Rule(w.original(), w.transparentSocket(), w.setConnectionMark())
	// A host-network endpoint answers to the client's address. The mark routes the answers to
	// the backend, which they would otherwise bypass.
	w.Rule(w.answer(), w.SetMark(), accept)
	// A reply begins no connection, even if its destination is a frontend, as in
	// prerouting.
	w.Rule(w.reply(), w.connectionMarked(expr.CmpOpEq), accept)
	// A backend of another kind has served the connection first, as in prerouting.
	w.Rule(w.original(), w.Translated(), accept)
	w.Rule(w.connectionState(expr.CtStateBitUNTRACKED), accept)
	w.Rule(w.Jump(chainServices))
}

// portlessIncoming delivers ICMP errors to the socket that has sent the quoted packet: its address
// may be that of a frontend or of a client. Socket expressions look up the quoted packet.
func (w chainWriter) portlessIncoming() {
	w.Rule(w.answer(), w.SetMark(), w.Accept())
	w.Rule(w.replyBeside(), w.Accept())
	w.Rule(w.ownSocket(), w.SetMark(), w.Accept())
	// An error on another flow, such as one that chain bridged has translated.
	w.Rule(w.connectionState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED|expr.CtStateBitUNTRACKED), w.Accept())
	w.Rule(w.Interface(expr.MetaKeyIIFNAME, "lo", expr.CmpOpNeq), w.Jump(chainServices))
}

// portlessOutgoing marks ICMP errors of the node about packets that the backend has sent to it. At
// this hook, socket expressions look up nothing.
func (w chainWriter) portlessOutgoing() {
	w.Rule(w.answer(), w.SetMark(), w.Accept())
	w.Rule(w.connectionState(expr.CtStateBitRELATED), w.reply(), w.connectionMarked(expr.CmpOpNeq), w.SetMark(), w.Accept())
	w.Rule(w.connectionState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED|expr.CtStateBitUNTRACKED), w.Accept())
	w.Rule(w.Jump(chainServices))
}

// postrouting drops marked packets that leave the node. They do so if another program has
// removed the routing rule, and their destination is a frontend.
func (w chainWriter) postrouting() {
	w.Rule(w.Marked(expr.CmpOpNeq), w.Interface(expr.MetaKeyOIFNAME, "lo", expr.CmpOpNeq), w.Drop())
}

// captured keeps the destination of marked packets that the node sends.
func (w chainWriter) captured() { w.keepDestination(nil) }

// keepDestination translates the destination of marked packets to what it is. Then the kernel evaluates
// no other chain of type nat: another instance or program that serves the same address does not translate
// packets that sockets of this host are to receive, and one that serves the same ranges does not drop them.
func (w chainWriter) keepDestination(from nft.Statement) {
	w.Rule(w.Marked(expr.CmpOpNeq), from, w.Encode(w.DestAddr(reg), &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(w.Family), RegAddrMin: reg}))
}

// borrowing puts flows that the backend begins from addresses of clients into a zone of their own.
// So a client may have a flow of its own with the same addresses and ports: connection tracking
// changes the port of the later one, because replies share a zone. The kernel sends some packets
// of TCP itself, without the socket of the backend, such as the last ones of a closed connection.
func (w chainWriter) borrowing() {
	own := w.ownPort(nft.SourcePort(reg))
	w.Rule(own, w.connectionState(expr.CtStateBitUNTRACKED), w.Accept())
	w.Rule(own, w.ProtocolIs(unix.IPPROTO_TCP), w.SourceNotLocal(), w.SetZone(borrowed))
	w.Rule(own, w.ProtocolIs(unix.IPPROTO_UDP), w.ownSocket(), w.SourceNotLocal(), w.SetZone(borrowed))
}

// beside sends on replies to a flow of a client that has addresses and ports in common with a
// socket of the backend, after their translation. Before the kernel routes a packet, it looks for
// a socket, also a closing one, and would deliver them to it, or drop them.
func (w chainWriter) beside() {
	w.Rule(w.isPortless(), w.Accept())
	w.Rule(w.Marked(expr.CmpOpNeq), w.Accept())
	w.Rule(w.ownPort(nft.DestPort(reg)), w.transparentSocket(), w.replyBeside(), w.SendOn(), w.Drop())
}

// bridged translates marked packets that arrive by a bridge. If netfilter sees bridged packets,
// it sees them on the bridge, and not again when they leave it for this host, where the kernel
// removes the socket that TPROXY has set.
func (w chainWriter) bridged() {
	// Clients must not reach listeners other than through a frontend.
	w.Rule(w.DestIn(w.translatedTo()), w.Drop())
	w.Rule(w.Marked(expr.CmpOpEq), w.Accept())
	w.keepDestination(w.comesByBridge(expr.CmpOpNeq))
	// Answers of endpoints on flows that connection tracking has forgotten.
	w.Rule(w.ownSocket(), w.Accept())
	for _, from := range w.FromPods(w.node.LocalTraffic) {
		w.translate(from, listenerBridgedPod)
	}
	w.translate(nil, listenerBridgedOutside)
}

// redirectIncoming and redirectOutgoing see the first packet of a connection; the kernel
// translates later ones in the same way.
func (w chainWriter) redirectIncoming() {
	// Clients must not reach listeners other than through a frontend.
	w.Rule(w.DestIn(w.translatedTo()), w.Drop())
	w.Rule(w.Jump(chainServices))
}

func (w chainWriter) redirectOutgoing() {
	// Late answers on connections that connection tracking has forgotten.
	w.Rule(w.SourceIn(w.translatedTo()), w.Drop())
	w.Rule(w.Jump(chainServices))
}
