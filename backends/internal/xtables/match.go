package xtables

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// longestInterface is the maximum length of the name of an interface.
const longestInterface = 15

// CheckInterfaces returns an error for names of interfaces that a rule cannot have.
func CheckInterfaces(t proxy.LocalTraffic) error {
	for _, name := range [...]string{t.Interface, t.InterfacePrefix} {
		bad := strings.ContainsFunc(name, func(r rune) bool {
			return r <= ' ' || r > '~' || strings.ContainsRune("\"'\\/!+", r)
		})
		if bad || len(name) > longestInterface || strings.HasPrefix(name, "-") {
			return fmt.Errorf("iptables: the interface of pods has an invalid name %q: correct the option", name)
		}
	}
	return nil
}

// MatchPods returns the matches for packets of pods, by their source and by the interface that
// receives them; a packet of a pod fulfils any of them.
func MatchPods(f v1.IPFamily, t proxy.LocalTraffic) (sources, interfaces []string) {
	for _, p := range t.Sources {
		if ipaddr.FamilyOf(p.Addr()) == f {
			sources = append(sources, MatchRange("-s", p))
		}
	}
	if t.Interface != "" {
		interfaces = append(interfaces, "-i "+t.Interface+" ")
	}
	switch {
	case len(t.InterfacePrefix) == longestInterface: // the prefix is the whole name
		interfaces = append(interfaces, "-i "+t.InterfacePrefix+" ")
	case t.InterfacePrefix != "":
		interfaces = append(interfaces, "-i "+t.InterfacePrefix+"+ ")
	}
	return sources, interfaces
}

// MatchRange matches a range by -s or -d; the range of all addresses needs no match.
func MatchRange(flag string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	var scratch [64]byte
	return string(append(p.Masked().AppendTo(append(append(scratch[:0], flag...), ' ')), ' '))
}

// Reject returns the action that rejects a packet with an ICMP error.
func Reject(f v1.IPFamily) string {
	if f == v1.IPv6Protocol {
		return "-j REJECT --reject-with icmp6-port-unreachable"
	}
	return "-j REJECT --reject-with icmp-port-unreachable"
}

// HairpinProgram returns a BPF program for -m bpf --bytecode that matches packets whose source and
// destination are the same address. With it, one rule is enough for all endpoints.
func HairpinProgram(f v1.IPFamily) string {
	if f == v1.IPv6Protocol {
		// For each of four words of the address: load the word of the destination, copy it
		// to X, load the word of the source, compare.
		return `"18,` +
			`32 0 0 24,7 0 0 0,32 0 0 8,29 0 13 0,` +
			`32 0 0 28,7 0 0 0,32 0 0 12,29 0 9 0,` +
			`32 0 0 32,7 0 0 0,32 0 0 16,29 0 5 0,` +
			`32 0 0 36,7 0 0 0,32 0 0 20,29 0 1 0,` +
			`6 0 0 65535,6 0 0 0"`
	}
	return `"6,32 0 0 16,7 0 0 0,32 0 0 12,29 0 1 0,6 0 0 65535,6 0 0 0"`
}
