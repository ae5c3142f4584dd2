package backendtest

import "slices"

// Capability is what a user may expect of a dataplane, in words for users.
type Capability string

// The capabilities that a dataplane may lack, though not every kind of it does.
const (
	// LastingConnections: connections go on when the process ends.
	LastingConnections Capability = "connections outlive the process"
	// ForeignMarks: packets leave the node with the packet mark that other
	// programs gave them.
	ForeignMarks Capability = "packets leave the node with the marks of other programs"
	// HostMarks: so do packets to endpoints in the node's own network come to
	// these.
	HostMarks Capability = "packets to endpoints in the node's own network keep them, too"
	// Affinity: session affinity. A backend that lacks it reports service
	// ports that ask for it, by [proxy.PortErrors], and serves all others.
	Affinity Capability = "ClientIP affinity with its timeout"
	// Adoption: a new process, or an Apply from the zero snapshot, takes over
	// without a write what is there and is right. A backend that lacks it may
	// make everything anew, to the same end.
	Adoption Capability = "restart without a write"
	// ClientAddresses: endpoints see the client's address wherever
	// [proxy.Route] says so. A backend that lacks it shows them the node's.
	ClientAddresses Capability = "endpoints see the client's address"
	// Refusals: what is rejected gets an ICMP error, and what is dropped
	// silence. A backend that lacks it may refuse in another way, such as by a
	// reset of TCP, and answer echo requests to addresses of Services; nobody
	// gets through all the same.
	Refusals Capability = "no endpoints, or a port that the Service does not have: reject; " +
		"Local without local endpoints, or an unused ClusterIP: drop"
	// OtherPorts: other ports of external addresses of Services are left
	// alone. A backend that lacks it may refuse what is sent there.
	OtherPorts Capability = "other ports of external addresses are left alone"
	// PodInterfaces: pods may be told by the interface that they come in by.
	PodInterfaces Capability = "pods are told by their interface"
	// Failover: a connection gets another endpoint where one does not answer.
	Failover Capability = "another endpoint where one does not answer"
	// Bridges: pods are ports of a Linux bridge, as flannel and the CNI plugin bridge
	// have them.
	Bridges Capability = "pods on a Linux bridge"
	// UnfilteredBridges: pods of one bridge reach each other through Services where
	// net.bridge.bridge-nf-call-iptables and -ip6tables are 0.
	UnfilteredBridges Capability = "the same with `net.bridge.bridge-nf-call-iptables` 0: from one pod of the bridge to another"
	// HairpinOff: a pod on a bridge reaches itself through a Service where its port's
	// hairpin_mode is off, and bridge-nf-call-iptables is 1.
	HairpinOff Capability = "the same with 1, and `hairpin_mode` off: from a pod to itself"
	// Tunnels: pods of other nodes are behind a tunnel whose packets are smaller than
	// those of clients and pods.
	Tunnels Capability = "pods of other nodes behind VXLAN, with a smaller MTU"
	// Addresses: the node has several addresses, also at one interface, and answers
	// at each from there.
	Addresses Capability = "several addresses of the node, at one interface and at each"
	// SingleStack: the node, its pods and its Services have IPv6 only.
	SingleStack Capability = "nodes with IPv6 only"
	// Marks: other programs use bits of the marks of packets and connections.
	Marks Capability = "others use bits of the marks of packets and connections"
	// RestoredMarks: they keep all bits of a packet's mark with the connection, and give
	// them to its other packets.
	RestoredMarks Capability = "others restore all bits of a connection's mark to its packets"
	// PolicyRouting: what pods send goes by a routing table of its own, and answers to
	// others by the main one, which other programs tell by the mark of the connection.
	PolicyRouting Capability = "others route pods by rules and connection marks"
	// ReversePathFilter: the node drops what comes in by another interface than its
	// source is behind, in IPv4 by the sysctl rp_filter.
	ReversePathFilter Capability = "strict reverse path filter (sysctl `rp_filter` 1)"
	// ReversePathFilter6: the same in IPv6, by the rules that firewalld has for it.
	ReversePathFilter6 Capability = "the same for IPv6, as firewalld has it (`IPv6_rpfilter`)"
	// Firewalls: other programs, of all kinds, drop what is forwarded unless it comes
	// from pods or goes to them.
	Firewalls Capability = "policy `DROP` of `FORWARD` in tables of others, which accept pods"
	// ClosedFirewalls: they drop all that is forwarded.
	ClosedFirewalls Capability = "the same where they do not accept pods"
	// FirewalledRefusals: what is rejected gets an ICMP error also where they would drop
	// it. A backend that lacks it may have it dropped; nobody gets through all the same.
	FirewalledRefusals Capability = "what is rejected gets an ICMP error, though these tables would drop it"
	// BridgedAddresses: endpoints see the address of a client on the same bridge.
	BridgedAddresses Capability = "endpoints see the address of a client on the same bridge"
)

// row is a capability with what proves it: subtests of [Run] by the patterns of
// [path.Match]. All that match must pass, and each pattern must match one.
type row struct {
	what Capability
	by   []string
}

// rows lists what backends can do, in the order of tables.
func rows() []row {
	return []row{
		{"ClusterIP, NodePort, external IP, load balancer IP (ipMode)", []string{"Scenarios/cluster", "Scenarios/other-destinations"}},
		{"IPv4 and IPv6; TCP and UDP", []string{"Scenarios/*", "Random", "Balance"}},
		{"internal and external traffic policy Local, with the cluster's own traffic short-circuited", []string{
			"Scenarios/internal-local*", "Scenarios/external-local*", "Scenarios/both-local", "Scenarios/one-local-external-local",
		}},
		{"terminating endpoints", []string{"Scenarios/terminating*"}},
		{"zone and node hints", []string{"Scenarios/*-hints"}},
		{"endpoints in the node's own network", []string{"Scenarios/host-network*"}},
		{"load balancer source ranges", []string{"Scenarios/source-ranges*"}},
		{Affinity, []string{"Scenarios/affinity", "Affinity"}},
		{"hairpin, local and remote", []string{"Scenarios/cluster", "Scenarios/one-local", "Scenarios/all-node-addresses"}},
		{ClientAddresses, []string{"Scenarios/*", "Random"}},
		{"masquerade-all; pods are told by their addresses, or not at all", []string{
			"Scenarios/masquerade-all", "Scenarios/cluster", "Scenarios/no-detector",
		}},
		{PodInterfaces, []string{"Scenarios/pods-by-*", "Poison/Interface"}},
		{Refusals, []string{"Scenarios/no-endpoints", "Scenarios/external-local-remote-only", "Scenarios/other-destinations"}},
		{OtherPorts, []string{"Scenarios/other-destinations"}},
		{"node ports at primary addresses, prefixes, or all", []string{
			"Scenarios/primary-node-addresses", "Scenarios/other-destinations", "Scenarios/all-node-addresses",
		}},
		{"large transfers, also where packets must be smaller than the client's", []string{"Transfers"}},
		{"changes of other Services disturb no connection", []string{"Traffic"}},
		{"connections spread evenly", []string{"Balance"}},
		{Failover, []string{"Failover"}},
		{"a Service that cannot be programmed is named, and stops no other", []string{"Poison/*", "Laws/Faults"}},
		{Adoption, []string{"Laws/Adoption", "Laws/Idempotence"}},
		{LastingConnections, []string{"Laws/EstablishedFlows"}},
		{"repair of what others removed, within `Runner.ResyncInterval`", []string{"Laws/Repair"}},
		{"a change costs the same among 10 Services and 500", []string{"Laws/Economy"}},
		{"rules and tables of others stay as they are", []string{"Laws/Cleanup"}},
		{ForeignMarks, []string{"Laws/Marks"}},
		{HostMarks, []string{"Laws/HostMarks"}},
		{"settings of the node that break Services are named: in the log, by a metric, on a page", []string{"Worlds/*/Node"}},
		{Bridges, []string{"Worlds/bridge-*/*"}},
		{UnfilteredBridges, []string{"Worlds/bridge-nf-0*/*"}},
		{HairpinOff, []string{"Worlds/bridge-nf-1-hairpin-off/*"}},
		{BridgedAddresses, []string{"Worlds/bridge-*/Scenarios"}},
		{Tunnels, []string{"Worlds/vxlan*/*"}},
		{Addresses, []string{"Worlds/addresses/*"}},
		{SingleStack, []string{"Worlds/ipv6/*"}},
		{Marks, []string{"Worlds/marks/*"}},
		{RestoredMarks, []string{"Worlds/marks-restored/*"}},
		{PolicyRouting, []string{"Worlds/policy-routing/*"}},
		{ReversePathFilter, []string{"Worlds/rp-filter/*"}},
		{ReversePathFilter6, []string{"Worlds/rp-filter-ipv6/*"}},
		{Firewalls, []string{"Worlds/forward-drop/*"}},
		{ClosedFirewalls, []string{"Worlds/forward-drop-pods/*"}},
		{FirewalledRefusals, []string{"Worlds/forward-drop/Scenarios"}},
	}
}

// known reports whether a capability is one of the suite's.
func known(what Capability) bool {
	return slices.ContainsFunc(rows(), func(r row) bool { return r.what == what })
}
