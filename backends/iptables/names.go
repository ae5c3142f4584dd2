package iptables

import (
	"strings"

	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/proxy"
)

// Chains that do not depend on the service ports, without their prefix. The names are those
// that operators know from kube-proxy.
const (
	chainServices         = "SERVICES"
	chainExternalServices = "EXTERNAL-SERVICES"
	chainNodePorts        = "NODEPORTS"
	chainProxyFirewall    = "PROXY-FIREWALL"
	chainClusterIPs       = "CLUSTER-IPS"
	chainUnserved         = "UNSERVED"
	chainReject           = "REJECT"
	chainHealthChecks     = "HEALTH-CHECKS"
	chainForward          = "FORWARD"
	chainInput            = "INPUT"
	chainPostrouting      = "POSTROUTING"
	chainMarkMasq         = "MARK-MASQ"
	chainMarkNonPods      = "MARK-NONPODS"
)

// Prefixes of the names of chains of one service port.
const (
	prefixCluster  = "SVC-" // the endpoints of policy Cluster
	prefixLocal    = "SVL-" // the endpoints of policy Local
	prefixExternal = "EXT-" // external addresses: rules before the rules of the pool
	prefixFirewall = "FW-"  // allowed source ranges
)

// names are the names of chains of one identity.
type names struct{ xtables.Names }

// newNames returns the names that other kinds of backends know, too. A chain that is missing there does
// not count as the backend's own.
func newNames(identity string) names { return names{kinds.IPTablesNames(identity)} }

func (n names) chain(name string) string { return n.Prefix + name }

// of returns the name of a chain of a service port. The number distinguishes chains of one
// kind; with 0 the names are the names of kube-proxy.
func (n names) of(kind string, port proxy.ServicePortName, number int) string {
	text := portText(port) + strings.ToLower(string(port.Protocol))
	text += strings.Repeat("'", number)
	return n.Prefix + kind + xtables.Hash(text)
}

// portText returns the name of a service port as operators know it.
func portText(p proxy.ServicePortName) string {
	text := p.Namespace + "/" + p.Name
	if p.Port != "" {
		text += ":" + p.Port
	}
	return text
}
