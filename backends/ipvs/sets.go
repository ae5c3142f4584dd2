package ipvs

import (
	"cmp"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// setID is an ipset of one family.
type setID uint8

// The sets. Entries are an address and a port unless the comment has another type.
const (
	setNone setID = iota
	// setAddresses has the addresses of the dummy device; its entries are addresses.
	setAddresses
	// setServers has all virtual servers of the backend, by which it knows those that other programs
	// have changed.
	setServers
	// The sets of frontends, by what they are from. A port of an address of setAddresses is
	// rejected unless it is in one of them.
	setClusterIP
	setExternalIP
	setExternalIPLocal
	setLoadBalancer
	setLoadBalancerLocal
	setNodePort
	setNodePortLocal
	// setFirewall has the frontends that are for allowed sources only, and setSources these
	// sources; its entries are an address, a port and a range.
	setFirewall
	setSources
	// The frontends whose connections are masqueraded, dropped and rejected, by where they
	// start.
	setMasqueradePods
	setMasqueradeNode
	setMasqueradeOutside
	setDropPods
	setDropNode
	setDropOutside
	setRejectPods
	setRejectNode
	setRejectOutside
	// setHealthChecks has the health check node ports at each address of the node.
	setHealthChecks
	// setInside marks packets from inside the cluster for the virtual server of the frontend
	// that only marked packets reach. setMarks has the same entries as long as that server
	// exists: by it, the backend knows the server. A listing needs setMarks first.
	setMarks
	setInside
	setCount
)

// class has the sets for connections by where they start.
type class struct{ masquerade, drop, reject setID }

func classPods() class    { return class{setMasqueradePods, setDropPods, setRejectPods} }
func classNode() class    { return class{setMasqueradeNode, setDropNode, setRejectNode} }
func classOutside() class { return class{setMasqueradeOutside, setDropOutside, setRejectOutside} }

// definition is what is the same in all families and identities.
type definition struct {
	// name has no prefix. The names of the sets by kind of frontend are those that operators
	// know from kube-proxy.
	name string
	kind kind // of the entries
	// typ is the type of the set; empty means hash:ip,port.
	typ string
	// isMarked says that the entries have packet marks.
	isMarked bool
}

// definition returns the definition of a set.
func (s setID) definition() definition {
	return [...]definition{
		setAddresses:         {name: "IPVS-IPS", typ: "hash:ip"},
		setServers:           {name: "IPVS-SERVERS", kind: kindFrontend},
		setClusterIP:         {name: "CLUSTER-IP", kind: kindFrontend},
		setExternalIP:        {name: "EXTERNAL-IP", kind: kindFrontend},
		setExternalIPLocal:   {name: "EXTERNAL-IP-LOCAL", kind: kindFrontend},
		setLoadBalancer:      {name: "LOAD-BALANCER", kind: kindFrontend},
		setLoadBalancerLocal: {name: "LOAD-BALANCER-LOCAL", kind: kindFrontend},
		setNodePort:          {name: "NODE-PORT", kind: kindFrontend},
		setNodePortLocal:     {name: "NODE-PORT-LOCAL", kind: kindFrontend},
		setFirewall:          {name: "LOAD-BALANCER-FW", kind: kindFirewall},
		setSources:           {name: "LOAD-BALANCER-SOURCE-CIDR", typ: "hash:ip,port,net"},
		setMasqueradePods:    {name: "MASQ-POD"},
		setMasqueradeNode:    {name: "MASQ-NODE"},
		setMasqueradeOutside: {name: "MASQ-OUTSIDE"},
		setDropPods:          {name: "DROP-POD"},
		setDropNode:          {name: "DROP-NODE"},
		setDropOutside:       {name: "DROP-OUTSIDE"},
		setRejectPods:        {name: "REJECT-POD"},
		setRejectNode:        {name: "REJECT-NODE"},
		setRejectOutside:     {name: "REJECT-OUTSIDE"},
		setHealthChecks:      {name: "HEALTH-CHECK-NODE-PORT"},
		setMarks:             {name: "MARKS", isMarked: true},
		setInside:            {name: "INSIDE", isMarked: true, kind: kindFrontend},
	}[s]
}

func (s setID) base() string   { return s.definition().name }
func (s setID) typ() string    { return cmp.Or(s.definition().typ, "hash:ip,port") }
func (s setID) kind() kind     { return s.definition().kind }
func (s setID) isMarked() bool { return s.definition().isMarked }

// allSets returns all sets.
func allSets() []setID {
	all := make([]setID, 0, setCount-1)
	for s := setNone + 1; s < setCount; s++ {
		all = append(all, s)
	}
	return all
}

// longestSet is the maximum length of the name of a set.
const longestSet = 31

// setName returns the name of a set of a family. The prefix begins all names of the identity.
func setName(prefix string, f v1.IPFamily, s setID) string {
	if f == v1.IPv6Protocol {
		prefix += "6-"
	}
	name := prefix + s.base()
	return name[:min(len(name), longestSet)]
}

// setOf returns the set of frontends that a frontend belongs to.
func setOf(port *proxy.ServicePort, k proxy.FrontendKind) setID {
	switch {
	case k == proxy.ClusterIP:
		return setClusterIP
	case k == proxy.ExternalIP && port.ExternalLocal:
		return setExternalIPLocal
	case k == proxy.ExternalIP:
		return setExternalIP
	case k == proxy.LoadBalancer && port.ExternalLocal:
		return setLoadBalancerLocal
	case k == proxy.LoadBalancer:
		return setLoadBalancer
	case port.ExternalLocal:
		return setNodePortLocal
	}
	return setNodePort
}

// frontendSets returns the sets of frontends at addresses of Services.
func frontendSets() []setID {
	return []setID{setClusterIP, setExternalIP, setExternalIPLocal, setLoadBalancer, setLoadBalancerLocal}
}

// maxEntries is the limit of entries of a set. It costs no memory.
const maxEntries = 1 << 24
