package xtables

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// ruleSteps is the result of reading the steps of a rule.
type ruleSteps struct {
	family nfnetlink.Family
	// isUnprintable is true if iptables makes no rule of a backend with such steps, and
	// may print the rule without them.
	isUnprintable bool
	// isSelective is true if the rule matches anything but the state of a connection, or
	// has a foreign comment.
	isSelective bool
	// isOwned is true if the rule has a comment of [Names.Comment].
	isOwned bool
	names   Names
	read    field
	chain   string
}

// isOwn reports whether the rule is an own jump, as [Names.ownsJump] does for text.
func (r *ruleSteps) isOwn(t Table) bool {
	return !r.isUnprintable && (r.isOwned || r.names.Owns(t, r.jumpTarget()))
}

// jumpTarget returns the chain that the rule jumps to, if the rule may be an own jump in one
// of the kernel's own chains.
func (r *ruleSteps) jumpTarget() string {
	if r.isUnprintable || r.isSelective {
		return ""
	}
	return r.chain
}

// readRule reads the steps of a rule.
func (n *native) readRule(rule *nfnetlink.RuleInfo) ruleSteps {
	r := ruleSteps{family: n.family, names: n.names}
	for s := range rule.Steps() {
		r.add(&s)
	}
	return r
}

func (r *ruleSteps) add(s *nfnetlink.Step) {
	switch string(s.Name) {
	case "counter":
	case "match":
		r.isSelective = r.isSelective || !isOwnStep(s)
		r.isOwned = r.isOwned || r.names.isOwner(commentOf(s))
	case "immediate":
		verdict, chain, ok := s.Verdict()
		r.isUnprintable = r.isUnprintable || !ok || verdict == nfnetlink.VerdictContinue
		if verdict == nfnetlink.VerdictJump {
			r.chain = string(chain)
		}
	case "target", "bitwise":
		r.isSelective = true
	case "cmp":
		r.isSelective = true
		r.isUnprintable = r.isUnprintable || s.Number(unix.NFTA_CMP_OP) > unix.NFT_CMP_NEQ
	default:
		r.isSelective = true
		r.load(r.field(s))
	}
}

// isOwnStep reports whether own jumps have such a match, as [isOwnMatch] does for text.
func isOwnStep(s *nfnetlink.Step) bool {
	return matchName(s) == "conntrack" || isOwnComment(commentOf(s))
}

func matchName(s *nfnetlink.Step) string {
	name, _, _ := bytes.Cut(s.Bytes(unix.NFTA_MATCH_NAME), []byte{0})
	return string(name)
}

// commentOf returns the comment of a match, "" if it matches something else.
func commentOf(s *nfnetlink.Step) string {
	if matchName(s) != "comment" {
		return ""
	}
	text, _, _ := bytes.Cut(s.Bytes(unix.NFTA_MATCH_INFO), []byte{0})
	return string(text)
}

// field is a set of fields of a packet that rules read.
type field uint8

const (
	fieldProtocol field = 1 << iota
	fieldSource
	fieldDestination
	fieldPort
	fieldInterface
	fieldOutInterface
	fieldMark
)

// load records that a step reads a field, 0 for one that iptables does not print. iptables
// prints one condition for each field except for the protocol, and ports only after a
// protocol.
func (r *ruleSteps) load(f field) {
	again := f&^fieldProtocol&r.read != 0
	r.isUnprintable = r.isUnprintable || f == 0 || again || f == fieldPort && r.read&fieldProtocol == 0
	r.read |= f
}

// field returns the field of a packet that a step reads.
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
		case unix.NFT_META_OIFNAME, unix.NFT_META_OIF:
			return fieldOutInterface
		}
	case "payload":
		f, longest := r.payloadField(s.Number(unix.NFTA_PAYLOAD_BASE), s.Number(unix.NFTA_PAYLOAD_OFFSET))
		if s.Bytes(unix.NFTA_PAYLOAD_DREG) != nil && s.Number(unix.NFTA_PAYLOAD_LEN) <= longest {
			return f
		}
	}
	return 0
}

// payloadField returns the field at an offset of a header, and its length: a step may read
// the first bytes of a field alone.
func (r *ruleSteps) payloadField(header, offset uint32) (f field, longest uint32) {
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
