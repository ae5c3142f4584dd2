package xtables

import (
	"net/netip"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// NeedsFlows implements [backends.FlowNeeder]: connection tracking remembers translations.
func (*Backend) NeedsFlows() bool { return true }

// Found implements [backends.Finder].
func (b *Backend) Found() (all []*proxy.ServicePort) {
	for _, f := range b.families {
		if finder, can := f.(backends.Finder); can {
			all = append(all, finder.Found()...)
		}
	}
	return all
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
