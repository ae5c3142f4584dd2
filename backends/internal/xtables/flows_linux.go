package xtables

import (
	"net/netip"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

// findFrontends records the frontends that rules translate.
func (k *kernel) findFrontends(s saved) {
	k.finds.Take() // of an earlier listing
	for ref, rules := range s {
		if ref.table != NAT || !k.names.IsOpen(ref.name) {
			continue
		}
		for _, rule := range rules {
			if protocol, at, ok := frontendOf(rule); ok {
				k.finds.Add(k.Family.Family, protocol, at)
			}
		}
	}
}

// frontendOf returns what a rule matches as iptables-save prints it, if that is a port, of an address or
// of any one. A comment may contain anything but quotes, and is before the port.
func frontendOf(rule string) (protocol uint8, at netip.AddrPort, ok bool) {
	head, _, _ := strings.Cut(rule, " -m ")
	words := strings.Fields(head)
	addr := netip.Addr{}
	if len(words) > 2 && words[0] == "-d" {
		p, err := netip.ParsePrefix(words[1])
		if err != nil || !p.IsSingleIP() {
			return 0, at, false
		}
		addr, words = p.Addr(), words[2:]
	}
	i := strings.LastIndex(rule, " --dport ")
	if len(words) != 2 || words[0] != "-p" || i < 0 {
		return 0, at, false
	}
	text, _, _ := strings.Cut(rule[i+len(" --dport "):], " ")
	port, err := strconv.ParseUint(text, 10, 16)
	protocol = ipaddr.ProtocolNumber(v1.Protocol(strings.ToUpper(words[1])))
	return protocol, netip.AddrPortFrom(addr, uint16(port)), err == nil && protocol != 0
}
