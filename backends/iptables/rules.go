package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Rules are written exactly as iptables-save prints them, so that what is read
// back can be compared as text.

// appendTo writes what matches packets for an address and port, with a comment.
func appendTo(b []byte, proto string, at netip.AddrPort, comment string) []byte {
	b = append(b, "-d "...)
	b = appendSingle(b, at.Addr())
	b = append(b, ' ')
	return appendPort(b, proto, at.Port(), comment)
}

// appendPort writes what matches packets for a port; the kernel keeps 256 bytes for
// a comment, so not every rule has one.
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

// matchRange matches a range by -s or -d; the range of everything needs no match.
func matchRange(flag string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return flag + " " + p.Masked().String() + " "
}

func jump(chain string) string { return "-j " + chain }

// commentLimit keeps comments shorter than the kernel's limit of 255.
const commentLimit = 240

// safe makes text fit for a comment in quotes, which it always has, as there is a
// slash or a space in it. What could end the quotes, or the line, becomes a
// question mark: names come from whoever makes service ports.
func safe(comment string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune("\"'\\", r) {
			return '?'
		}
		return r
	}, comment)
}

// appendOneOf writes a match at random, so that each of n rules that are left gets
// the same share. Nothing is matched where only one is left.
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

// protocolName is what iptables calls a protocol.
func protocolName(p v1.Protocol) string { return strings.ToLower(string(p)) }

// markRule marks packets that are to be masqueraded.
func (p *page) markRule() string {
	m := p.options.Identity.Mark
	return fmt.Sprintf("-j MARK --set-xmark %#x/%#x", m, m)
}

// unmarkRule takes the mark off packets that endpoints in the node's own network get:
// they have not left the node, so they are not masqueraded.
func (p *page) unmarkRule() string {
	return fmt.Sprintf("-j MARK --set-xmark 0x0/%#x", p.options.Identity.Mark)
}

// postrouting are the rules for packets on their way out: those that are marked
// are masqueraded, and those that would come back to where they are from.
func (p *page) postrouting() []string {
	m := p.options.Identity.Mark
	unmarked := fmt.Sprintf("-m mark ! --mark %#x/%#x ", m, m)
	return []string{
		unmarked + "-m conntrack --ctstate DNAT -m bpf --bytecode " + p.hairpin() + " -j MASQUERADE --random-fully",
		unmarked + "-j RETURN",
		fmt.Sprintf("-j MARK --set-xmark %#x/0x0", m),
		"-j MASQUERADE --random-fully",
	}
}

// hairpin is a program of the kernel's packet filter language which finds
// packets of which source and destination are one address. One such rule stands
// for one for each endpoint.
func (p *page) hairpin() string {
	if p.family == v1.IPv6Protocol {
		// For each of four words: load that of the destination, keep it, load
		// that of the source, compare.
		return `"18,` +
			`32 0 0 24,7 0 0 0,32 0 0 8,29 0 13 0,` +
			`32 0 0 28,7 0 0 0,32 0 0 12,29 0 9 0,` +
			`32 0 0 32,7 0 0 0,32 0 0 16,29 0 5 0,` +
			`32 0 0 36,7 0 0 0,32 0 0 20,29 0 1 0,` +
			`6 0 0 65535,6 0 0 0"`
	}
	return `"6,32 0 0 16,7 0 0 0,32 0 0 12,29 0 1 0,6 0 0 65535,6 0 0 0"`
}

// reject refuses a packet with an ICMP error.
func (p *page) reject() string {
	if p.family == v1.IPv6Protocol {
		return "-j REJECT --reject-with icmp6-port-unreachable"
	}
	return "-j REJECT --reject-with icmp-port-unreachable"
}

// pods are the matches of which any tells a packet as one of a pod.
func (p *page) podMatches() (matches []string) {
	t := p.node.LocalTraffic
	for _, source := range t.Sources {
		if p.isOurs(source) {
			matches = append(matches, matchRange("-s", source))
		}
	}
	if t.Interface != "" {
		matches = append(matches, "-i "+t.Interface+" ")
	}
	switch {
	case len(t.InterfacePrefix) == longestInterface: // there is no room for more
		matches = append(matches, "-i "+t.InterfacePrefix+" ")
	case t.InterfacePrefix != "":
		matches = append(matches, "-i "+t.InterfacePrefix+"+ ")
	}
	return matches
}

// wholeMask is the mask under which addresses are compared as a whole.
func (p *page) wholeMask() string {
	if p.family == v1.IPv6Protocol {
		return "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	return "255.255.255.255"
}

// isOurs reports whether a range is of the family of the page.
func (p *page) isOurs(r netip.Prefix) bool { return ipaddr.FamilyOf(r.Addr()) == p.family }

// nodePortMatches are the matches of which any tells a packet as one for an
// address where node ports answer; loopback addresses are left out elsewhere.
func (p *page) nodePortMatches() (matches []string) {
	const local = "-m addrtype --dst-type LOCAL "
	at := p.node.NodePorts
	if at.All {
		return []string{local}
	}
	for _, r := range at.Prefixes {
		if p.isOurs(r) {
			matches = append(matches, matchRange("-d", r)+local)
		}
	}
	return matches
}

func (p *page) loopback() string {
	if p.family == v1.IPv6Protocol {
		return "-d ::1/128 "
	}
	return "-d 127.0.0.0/8 "
}

// longestInterface is how long the name of an interface may be.
const longestInterface = 15

// interfaceFault says why the name of an interface cannot be part of a rule.
func interfaceFault(t proxy.LocalTraffic) error {
	for _, name := range [...]string{t.Interface, t.InterfacePrefix} {
		odd := strings.IndexFunc(name, func(r rune) bool {
			return r <= ' ' || r > '~' || strings.ContainsRune("\"'\\/!+", r)
		})
		if len(name) > longestInterface || odd >= 0 || strings.HasPrefix(name, "-") {
			return fmt.Errorf("no name of an interface: %q", name)
		}
	}
	return nil
}
