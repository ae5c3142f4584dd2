package xtables

import (
	"bytes"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// nativeRule is what the steps of a rule of nf_tables say.
type nativeRule struct {
	// isMisprinted is true if iptables makes no rule of a backend with such steps, and may print the
	// rule without them.
	isMisprinted bool
	// isSelective is true if the rule matches anything but the state of a connection, or has a
	// foreign comment; isOwned if it has a comment of [Names.Comment].
	isSelective, isOwned bool
	// target is the chain to which the rule leads.
	target string
	names  Names
	read   field
}

// isOwn reports whether the rule is an own jump, as [Names.ownsJump] does for text.
func (r *nativeRule) isOwn(t Table) bool {
	return !r.isMisprinted && (r.isOwned || !r.isSelective && r.names.Owns(t, r.target))
}

func (n *native) readRule(rule *nfnetlink.RuleInfo) *nativeRule {
	r := &nativeRule{names: n.names}
	for s := range rule.Steps() {
		r.add(&s, n.family)
	}
	return r
}

func (r *nativeRule) add(s *nfnetlink.Step, family nfnetlink.Family) {
	switch string(s.Name) {
	case "counter":
	case "match":
		name, comment := textOf(s, unix.NFTA_MATCH_NAME), textOf(s, unix.NFTA_MATCH_INFO)
		isComment := name == "comment"
		r.isSelective = r.isSelective || name != "conntrack" && (!isComment || !isOwnComment(comment))
		r.isOwned = r.isOwned || isComment && r.names.isOwner(comment)
	case "immediate":
		verdict, chain, ok := s.Verdict()
		r.isMisprinted = r.isMisprinted || !ok || verdict == nfnetlink.VerdictContinue
		r.isSelective = r.isSelective || verdict != nfnetlink.VerdictJump
		r.target = string(chain)
	case "target", "bitwise":
		r.isSelective = true
	case "cmp":
		r.isSelective = true
		r.isMisprinted = r.isMisprinted || s.Number(unix.NFTA_CMP_OP) > unix.NFT_CMP_NEQ
	default:
		r.isSelective = true
		r.load(fieldOf(s, family))
	}
}

// isOwnComment reports whether own jumps may have such a comment, as [Names.ownsJump] says.
func isOwnComment(text string) bool {
	return strings.HasPrefix(text, "kubernetes ") || strings.HasPrefix(text, "kube-proxy ")
}

// textOf returns an attribute of a step up to the first zero.
func textOf(s *nfnetlink.Step, attr uint16) string {
	text, _, _ := bytes.Cut(s.Bytes(attr), []byte{0})
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
func (r *nativeRule) load(f field) {
	again := f&^fieldProtocol&r.read != 0
	r.isMisprinted = r.isMisprinted || f == 0 || again || f == fieldPort && r.read&fieldProtocol == 0
	r.read |= f
}

// fieldOf returns the field of a packet that a step reads.
func fieldOf(s *nfnetlink.Step, family nfnetlink.Family) field {
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
		f, longest := payloadField(family, s.Number(unix.NFTA_PAYLOAD_BASE), s.Number(unix.NFTA_PAYLOAD_OFFSET))
		if s.Bytes(unix.NFTA_PAYLOAD_DREG) != nil && s.Number(unix.NFTA_PAYLOAD_LEN) <= longest {
			return f
		}
	}
	return 0
}

// payloadField returns the field at an offset of a header, and its length: a step may read
// the first bytes of a field alone.
func payloadField(family nfnetlink.Family, header, offset uint32) (f field, longest uint32) {
	switch {
	case header == unix.NFT_PAYLOAD_TRANSPORT_HEADER && offset == 2:
		return fieldPort, 2
	case header != unix.NFT_PAYLOAD_NETWORK_HEADER:
		return 0, 0
	}
	protocol, source, destination, length := uint32(9), uint32(12), uint32(16), uint32(4)
	if family == nfnetlink.IPv6 {
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
