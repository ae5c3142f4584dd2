package iptables

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// ruleSteps are what was found of a rule, step by step.
type ruleSteps struct {
	family nfnetlink.Family
	// isOdd says that there is something else than what iptables makes rules of this
	// package of: the rule may be printed without it.
	isOdd bool
	// chooses says that packets are chosen by something else than the state of their
	// connections, or that a comment says the rule is of others.
	chooses bool
	read    field
	chain   string
}

// leads is the chain that the rule jumps to, if the rule may be one of ours in one of the
// kernel's own chains.
func (r *ruleSteps) leads() string {
	if r.isOdd || r.chooses {
		return ""
	}
	return r.chain
}

// look finds out what a rule is.
func (n *native) look(rule *nfnetlink.RuleInfo) ruleSteps {
	r := ruleSteps{family: n.family}
	for s := range rule.Steps() {
		r.add(&s)
	}
	return r
}

func (r *ruleSteps) add(s *nfnetlink.Step) {
	switch string(s.Name) {
	case "counter":
	case "match":
		r.chooses = r.chooses || !isOwnStep(s)
	case "immediate":
		verdict, chain, ok := s.Verdict()
		r.isOdd = r.isOdd || !ok || verdict == nfnetlink.VerdictContinue
		if verdict == nfnetlink.VerdictJump {
			r.chain = string(chain)
		}
	case "target", "bitwise":
		r.chooses = true
	case "cmp":
		r.chooses = true
		r.isOdd = r.isOdd || s.Number(unix.NFTA_CMP_OP) > unix.NFT_CMP_NEQ
	default:
		r.chooses = true
		r.load(r.field(s))
	}
}

// isOwnStep reports whether jumps of ours have such a match, as [isOwnMatch] does.
func isOwnStep(s *nfnetlink.Step) bool {
	switch name, _, _ := bytes.Cut(s.Bytes(unix.NFTA_MATCH_NAME), []byte{0}); string(name) {
	case "conntrack":
		return true
	case "comment":
		return bytes.HasPrefix(s.Bytes(unix.NFTA_MATCH_INFO), []byte("kubernetes "))
	}
	return false
}

// field is a part of a packet that rules look at, or several.
type field uint8

const (
	fieldProtocol field = 1 << iota
	fieldSource
	fieldDestination
	fieldPort
	fieldInterface
	fieldMark
)

// load takes note of a field that is read: 0 is none that iptables prints. It prints one
// condition for each but the protocol, and none on ports of no protocol.
func (r *ruleSteps) load(f field) {
	again := f&^fieldProtocol&r.read != 0
	r.isOdd = r.isOdd || f == 0 || again || f == fieldPort && r.read&fieldProtocol == 0
	r.read |= f
}

// field tells which part of a packet a step reads.
func (r *ruleSteps) field(s *nfnetlink.Step) field {
	switch string(s.Name) {
	case "meta":
		if s.Bytes(unix.NFTA_META_DREG) == nil {
			return 0
		}
		switch s.Number(unix.NFTA_META_KEY) {
		case unix.NFT_META_L4PROTO:
			return fieldProtocol
		case unix.NFT_META_MARK:
			return fieldMark
		case unix.NFT_META_IIFNAME, unix.NFT_META_IIF:
			return fieldInterface
		}
	case "payload":
		f, longest := r.place(s.Number(unix.NFTA_PAYLOAD_BASE), s.Number(unix.NFTA_PAYLOAD_OFFSET))
		if s.Bytes(unix.NFTA_PAYLOAD_DREG) != nil && s.Number(unix.NFTA_PAYLOAD_LEN) <= longest {
			return f
		}
	}
	return 0
}

// place tells which field is somewhere in a packet, and how long it is: the first bytes
// of one may be read alone.
func (r *ruleSteps) place(header, offset uint32) (f field, longest uint32) {
	switch {
	case header == unix.NFT_PAYLOAD_TRANSPORT_HEADER && offset == 2:
		return fieldPort, 2
	case header != unix.NFT_PAYLOAD_NETWORK_HEADER:
		return 0, 0
	}
	protocol, source, destination, length := uint32(9), uint32(12), uint32(16), uint32(4)
	if r.family == nfnetlink.IPv6 {
		protocol, source, destination, length = 6, 8, 24, 16
	}
	switch offset {
	case protocol:
		return fieldProtocol, 1
	case source:
		return fieldSource, length
	case destination:
		return fieldDestination, length
	}
	return 0, 0
}
