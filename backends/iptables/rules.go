package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// Rules are written exactly as iptables-save prints them, so that they can be compared as
// text.

// longRule is the size in bytes of scratch buffers on the stack; most rules are shorter.
const longRule = 512

// appendTo writes a match for packets to an address and port, with a comment.
func appendTo(b []byte, proto string, at netip.AddrPort, comment string) []byte {
	b = append(b, "-d "...)
	b = appendSingle(b, at.Addr())
	b = append(b, ' ')
	return appendPort(b, proto, at.Port(), comment)
}

// appendPort writes a match for packets to a port. The kernel needs 256 bytes for a
// comment, so not every rule has one.
func appendPort(b []byte, proto string, port uint16, comment string) []byte {
	b = append(b, "-p "...)
	b = append(b, proto...)
	if comment != "" {
		b = append(b, " -m comment --comment \""...)
		b = append(b, comment[:min(len(comment), commentLimit)]...)
		b = append(b, '"')
	}
	b = append(append(b, " -m "...), proto...)
	b = append(b, " --dport "...)
	return strconv.AppendUint(b, uint64(port), 10)
}

func appendSingle(b []byte, a netip.Addr) []byte {
	return netip.PrefixFrom(a, a.BitLen()).AppendTo(b)
}

func jump(chain string) string { return "-j " + chain }

// commentLimit keeps comments shorter than the kernel's limit of 255.
const commentLimit = 240

// safe makes text usable in a comment. Comments always have quotes, because they contain a
// slash or a space. safe replaces characters that could end the quotes or the line by
// question marks: users who create Services choose names.
func safe(comment string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune("\"'\\", r) {
			return '?'
		}
		return r
	}, comment)
}

// appendOneOf writes a match with probability 1/n, so that each of the n remaining rules
// gets the same share. The last one needs no match.
func appendOneOf(b []byte, n int) []byte {
	if n == 1 {
		return b
	}
	const whole = 1 << 31 // the kernel's unit of probability
	share := math.Round(whole/float64(n)) / whole
	b = append(b, "-m statistic --mode random --probability "...)
	b = strconv.AppendFloat(b, share, 'f', 11, 64)
	return append(b, ' ')
}

// protocolName returns iptables' name of a protocol.
func protocolName(p v1.Protocol) string { return strings.ToLower(string(p)) }

// markRule returns the rule that marks packets to be masqueraded.
func (r *renderer) markRule() string {
	m := r.mark
	return fmt.Sprintf("-j MARK --set-xmark %#x/%#x", m, m)
}

// unmarkRule returns the rule that clears the mark of packets to host-network endpoints:
// they do not leave the node, so they are not masqueraded.
func (r *renderer) unmarkRule() string {
	return fmt.Sprintf("-j MARK --set-xmark 0x0/%#x", r.mark)
}

// postrouting returns the rules that masquerade marked packets, and hairpins.
func (r *renderer) postrouting() []string {
	m := r.mark
	unmarked := fmt.Sprintf("-m mark ! --mark %#x/%#x ", m, m)
	return []string{
		unmarked + "-m conntrack --ctstate DNAT -m bpf --bytecode " + xtables.HairpinProgram(r.family) + " -j MASQUERADE --random-fully",
		unmarked + "-j RETURN",
		fmt.Sprintf("-j MARK --set-xmark %#x/0x0", m),
		"-j MASQUERADE --random-fully",
	}
}

// podMatches returns the matches for packets of pods; a packet of a pod fulfils any of them.
func (n *nodeRenderer) podMatches() []string {
	sources, interfaces := xtables.MatchPods(n.family, n.node.LocalTraffic)
	return append(sources, interfaces...)
}

// wholeMask returns the mask of a single address.
func (r *renderer) wholeMask() string {
	if r.family == v1.IPv6Protocol {
		return "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	return "255.255.255.255"
}

// isOurs reports whether a range is of the family that is rendered.
func (r *renderer) isOurs(p netip.Prefix) bool { return ipaddr.FamilyOf(p.Addr()) == r.family }

// nodePortMatches returns the matches for packets to addresses that serve node ports; such a
// packet fulfils any of them. Another rule excludes loopback addresses.
func (n *nodeRenderer) nodePortMatches() (matches []string) {
	const local = "-m addrtype --dst-type LOCAL "
	at := n.node.NodePorts
	if at.All {
		return []string{local}
	}
	for _, p := range at.Prefixes {
		if n.isOurs(p) {
			matches = append(matches, xtables.MatchRange("-d", p)+local)
		}
	}
	return matches
}

func (r *renderer) loopback() string {
	if r.family == v1.IPv6Protocol {
		return "-d ::1/128 "
	}
	return "-d 127.0.0.0/8 "
}
