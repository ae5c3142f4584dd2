package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/proxy"
)

// table is a table of iptables.
type table uint8

const (
	nat table = iota
	filter
)

func (t table) String() string { return [...]string{"nat", "filter"}[t&1] }

// tableNamed finds a table that this package uses.
func tableNamed(name string) (t table, ok bool) {
	switch name {
	case "nat":
		return nat, true
	case "filter":
		return filter, true
	}
	return 0, false
}

// Chains that are always there, without their prefix. The names are those that
// operators know from kube-proxy.
const (
	chainServices         = "SERVICES"
	chainExternalServices = "EXTERNAL-SERVICES"
	chainNodePorts        = "NODEPORTS"
	chainProxyFirewall    = "PROXY-FIREWALL"
	chainForward          = "FORWARD"
	chainInput            = "INPUT"
	chainPostrouting      = "POSTROUTING"
	chainMarkMasq         = "MARK-MASQ"
	chainMarkNonPods      = "MARK-NONPODS"
	chainCanary           = "PROXY-CANARY" // made by kube-proxy, and here only to find out what is missing
)

// Beginnings of the names of chains of one service port.
const (
	prefixCluster  = "SVC-" // the endpoints of policy Cluster
	prefixLocal    = "SVL-" // those of policy Local
	prefixExternal = "EXT-" // what comes first for external addresses
	prefixFirewall = "FW-"  // allowed source ranges
	prefixEndpoint = "SEP-" // never made here, but by kube-proxy
)

// hashLen is the length of the hash in the name of a chain.
const hashLen = 16

// names are the names of chains of one identity.
type names struct{ prefix string }

// longestPrefix leaves room for SVC-, a hash, and the dash behind the prefix:
// the kernel takes names of 28 characters.
const longestPrefix = 7

func newNames(identity string) names {
	if len(identity) > longestPrefix {
		identity = identity[:2] + hash(identity)[:longestPrefix-2]
	}
	return names{prefix: strings.ToUpper(identity) + "-"}
}

func (n names) chain(name string) string { return n.prefix + name }

// of names a chain of a service port. Chains of one kind that say different
// things are told apart by a number; the first has none, which gives the names
// of kube-proxy.
func (n names) of(kind string, port proxy.ServicePortName, number int) string {
	text := portText(port) + strings.ToLower(string(port.Protocol))
	text += strings.Repeat("'", number)
	return n.prefix + kind + hash(text)
}

// portText names a service port as operators know it.
func portText(p proxy.ServicePortName) string {
	text := p.Namespace + "/" + p.Name
	if p.Port != "" {
		text += ":" + p.Port
	}
	return text
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:])[:hashLen]
}

// owns reports whether a chain of a table belongs to this identity.
func (n names) owns(t table, chain string) bool {
	rest, ok := strings.CutPrefix(chain, n.prefix)
	if !ok {
		return false
	}
	if slices.Contains(fixedChains(t), rest) {
		return true
	}
	for _, kind := range [...]string{prefixCluster, prefixLocal, prefixExternal, prefixFirewall, prefixEndpoint} {
		if digest, ok := strings.CutPrefix(rest, kind); ok && isHash(digest) {
			return true
		}
	}
	return false
}

func isHash(s string) bool {
	return len(s) == hashLen && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// fixedChains are the chains of a table that belong to an identity whatever the
// services are.
func fixedChains(t table) []string {
	if t == filter {
		return []string{chainServices, chainExternalServices, chainNodePorts, chainProxyFirewall, chainForward, chainCanary}
	}
	return []string{chainServices, chainNodePorts, chainInput, chainPostrouting, chainMarkMasq, chainMarkNonPods, chainCanary}
}

// isOpen reports whether the rules of a chain come one by one from many sides.
// Of all other chains the content is one value.
func (n names) isOpen(chain string) bool {
	rest, ok := strings.CutPrefix(chain, n.prefix)
	return !ok || rest == chainServices || rest == chainExternalServices || rest == chainNodePorts
}
