package backendtest

import "slices"

// Capability is something that a dataplane can do: a short label for users.
type Capability string

// The capabilities that a dataplane may lack by its kind.
const (
	// LastingConnections: connections continue after the process ends.
	LastingConnections Capability = "connections outlive the process"
	// ForeignMarks: packets leave the node with the packet mark that other
	// programs gave them.
	ForeignMarks Capability = "foreign packet marks kept"
	// HostMarks: packets to host-network endpoints keep the marks of other programs.
	HostMarks Capability = "foreign marks kept, host-network endpoints"
	// Affinity: session affinity. A backend that lacks it reports service
	// ports with affinity, by [proxy.PortErrors], and serves all others.
	Affinity Capability = "ClientIP affinity"
	// FrontendAffinity: a client keeps one endpoint at all addresses of a service port. With a
	// backend that lacks it, a client keeps one endpoint for each address. A backend that lacks
	// Affinity also lacks FrontendAffinity and AffinityTimeout.
	FrontendAffinity Capability = "ClientIP affinity across addresses"
	// AffinityTimeout: a client keeps its endpoint until the timeout has passed since its last
	// connection. With a backend that lacks AffinityTimeout, the client may keep its endpoint for longer.
	AffinityTimeout Capability = "ClientIP affinity ends at its timeout"
	// PolicyFlows: a UDP client that keeps its port keeps its endpoint, and loses no datagram, while a traffic
	// policy changes that allows the endpoint before and after. With a backend that lacks it, datagrams may be lost
	// then, and flows of the node's own processes may end with the last endpoint. It has no row.
	PolicyFlows Capability = "flows lasting through changes of policies"
	// SCTP: service ports of SCTP. A backend that lacks it reports them by [proxy.PortErrors],
	// and serves all others. No table has it: few kernels have sockets to prove it with.
	SCTP Capability = "SCTP"
	// Adoption: a new process, or an Apply from the zero snapshot, adopts existing
	// correct objects without a write. A backend that lacks it may make all objects
	// again, with the same result.
	Adoption Capability = "restart without a write"
	// ClientAddresses: endpoints see the client's address if [proxy.Route] does not
	// masquerade. With a backend that lacks it they see the node's address.
	ClientAddresses Capability = "client address preserved"
	// Refusals: rejected packets get a TCP reset or an ICMP error, and dropped ones no answer. A
	// backend that lacks it may refuse packets in another way, such as by a TCP
	// reset, and answer echo requests to addresses of Services; it must not forward
	// the packets.
	Refusals Capability = "ICMP reject, silent drop"
	// OtherPorts: packets to other ports of external addresses of Services pass
	// unchanged. A backend that lacks it may refuse them.
	OtherPorts Capability = "other ports of external addresses untouched"
	// PodInterfaces: traffic from pods may be recognized by the interface that receives it.
	PodInterfaces Capability = "pods identified by interface"
	// NodeAddresses: endpoints see the address that a process of the node sends from, if
	// [proxy.Route] does not masquerade. With a backend that lacks it they see the node's
	// address towards them, unless they were reached by a node port.
	NodeAddresses Capability = "source address of the node preserved"
	// Fragments: UDP datagrams may be larger than the MTU on the way to the endpoint. A backend
	// that lacks it may lose those of the node's processes, and those of IPv6 from pods on a
	// bridge.
	Fragments Capability = "fragmented UDP of the node, and from bridges"
	// LoopbackNodePorts: node ports answer processes of the node at loopback addresses, by the
	// backend that Config.Loopback makes; a backend without one lacks it.
	LoopbackNodePorts Capability = "node ports at loopback addresses"
	// Failover: a connection gets another endpoint if one does not answer.
	Failover Capability = "failover to another endpoint"
	// Bridges: pods are ports of a Linux bridge, as with flannel and the CNI plugin
	// bridge.
	Bridges Capability = "pods on a Linux bridge"
	// UnfilteredBridges: pods of one bridge reach each other through Services if
	// net.bridge.bridge-nf-call-iptables and -ip6tables are 0.
	UnfilteredBridges Capability = "bridge, `bridge-nf-call-iptables` 0"
	// HairpinOff: a pod on a bridge reaches itself through a Service if its port's
	// hairpin_mode is off, and bridge-nf-call-iptables is 1.
	HairpinOff Capability = "bridge, `hairpin_mode` off"
	// Tunnels: pods of other nodes are behind a tunnel whose MTU is smaller than that of
	// clients and pods.
	Tunnels Capability = "VXLAN with a smaller MTU"
	// Addresses: the node has several addresses, also at one interface, and its answers
	// have the address that the client used.
	Addresses Capability = "several node addresses"
	// SingleStack: the node, its pods and its Services have IPv6 only.
	SingleStack Capability = "IPv6-only nodes"
	// Marks: other programs use bits of the marks of packets and connections.
	Marks Capability = "foreign bits in packet and connection marks"
	// RestoredMarks: other programs save all bits of a packet's mark in the mark of the
	// connection, and restore them to its other packets.
	RestoredMarks Capability = "foreign restore of connection marks"
	// PolicyRouting: packets from pods have a routing table of their own, except answers,
	// which use the main one; other programs distinguish these by the connection mark.
	PolicyRouting Capability = "foreign policy routing of pods"
	// ReversePathFilter: the node drops packets that it receives on another interface than
	// that of the route to their source, in IPv4 by the sysctl rp_filter.
	ReversePathFilter Capability = "strict reverse path filter, IPv4"
	// ReversePathFilter6: the same in IPv6, by the rules that firewalld has for it.
	ReversePathFilter6 Capability = "strict reverse path filter, IPv6"
	// Firewalls: other programs, with all kinds of rules, drop forwarded packets except
	// those from and to pods.
	Firewalls Capability = "foreign `FORWARD` policy `DROP`, pods accepted"
	// ClosedFirewalls: other programs drop all forwarded packets.
	ClosedFirewalls Capability = "foreign `FORWARD` policy `DROP`, pods not accepted"
	// FirewalledRefusals: rejected packets get an answer also if other programs would
	// drop them. With a backend that lacks it they may be dropped instead.
	FirewalledRefusals Capability = "ICMP reject despite foreign `DROP`"
	// BridgedAddresses: endpoints see the address of a client on the same bridge.
	BridgedAddresses Capability = "bridge, client address preserved"
)

// row is a capability with its proof: subtests of [Run], by patterns of [path.Match].
// All subtests that match must pass, and each pattern must match at least one.
type row struct {
	what Capability
	// note names the footnote of the row in a document; empty for none.
	note string
	by   []string
}

// label is the first cell of the row.
func (r row) label() string {
	if r.note == "" {
		return string(r.what)
	}
	return string(r.what) + "[^" + r.note + "]"
}

// rows lists the capabilities, in the order of the tables of documents.
func rows() []row {
	return []row{
		{"ClusterIP, NodePort, external IP, load balancer IP", "", []string{"Scenarios/cluster", "Scenarios/other-destinations", "Scenarios/node-address-in-range"}},
		{"IPv4 and IPv6; TCP and UDP", "", []string{"Scenarios/*", "Random", "Balance"}},
		{"traffic policy Local", "local", []string{
			"Scenarios/internal-local*", "Scenarios/external-local*", "Scenarios/both-local", "Scenarios/one-local-external-local",
		}},
		{"terminating endpoints", "", []string{"Scenarios/terminating*"}},
		{"zone and node hints", "", []string{"Scenarios/*-hints"}},
		{"host-network endpoints", "", []string{"Scenarios/host-network*"}},
		{"load balancer source ranges", "", []string{"Scenarios/source-ranges*"}},
		{Affinity, "", []string{"Scenarios/affinity*", "Affinity"}},
		{FrontendAffinity, "across", []string{"Affinity"}},
		{AffinityTimeout, "", []string{"Affinity"}},
		{"hairpin connections", "hairpin", []string{"Scenarios/cluster", "Scenarios/one-local", "Scenarios/all-node-addresses"}},
		{ClientAddresses, "client", []string{"Scenarios/*", "Random"}},
		{NodeAddresses, "source", []string{"Scenarios/no-detector"}},
		{"pods identified by address", "pods", []string{
			"Scenarios/masquerade-all", "Scenarios/cluster", "Scenarios/no-detector",
		}},
		{PodInterfaces, "", []string{"Scenarios/pods-by-*", "Poison/Interface"}},
		{Refusals, "refusals", []string{"Scenarios/no-endpoints", "Scenarios/external-local-remote-only", "Scenarios/other-destinations"}},
		{OtherPorts, "", []string{"Scenarios/other-destinations"}},
		{"choice of node port addresses", "nodeports", []string{
			"Scenarios/primary-node-addresses", "Scenarios/other-destinations", "Scenarios/all-node-addresses",
		}},
		{LoopbackNodePorts, "loopback", []string{"Loopback"}},
		{"large transfers", "transfers", []string{"Transfers"}},
		{Fragments, "fragments", []string{"Transfers"}},
		{"changes disturb no other Service", "", []string{"Traffic"}},
		{"connections spread evenly", "", []string{"Balance"}},
		{Failover, "", []string{"Failover"}},
		{"faulty Services isolated", "faulty", []string{"Poison/*", "Laws/Faults"}},
		{Adoption, "", []string{"Laws/Adoption", "Laws/Idempotence"}},
		{LastingConnections, "", []string{"Laws/EstablishedFlows"}},
		{"repair of foreign changes", "repair", []string{"Laws/Repair"}},
		{"cost of a change independent of size", "cost", []string{"Laws/Economy"}},
		{"foreign rules and tables untouched", "", []string{"Laws/Cleanup"}},
		{ForeignMarks, "marks", []string{"Laws/Marks"}},
		{HostMarks, "hostmarks", []string{"Laws/HostMarks"}},
		{"node settings checked", "settings", []string{"Worlds/*/Node"}},
		{Bridges, "", []string{"Worlds/bridge-*/*"}},
		{UnfilteredBridges, "bridge", []string{"Worlds/bridge-nf-0*/*"}},
		{HairpinOff, "hairpinmode", []string{"Worlds/bridge-nf-1-hairpin-off/*"}},
		{BridgedAddresses, "", []string{"Worlds/bridge-*/Scenarios"}},
		{Tunnels, "", []string{"Worlds/vxlan*/*"}},
		{Addresses, "addresses", []string{"Worlds/addresses/*"}},
		{SingleStack, "", []string{"Worlds/ipv6/*"}},
		{Marks, "bits", []string{"Worlds/marks/*"}},
		{RestoredMarks, "restore", []string{"Worlds/marks-restored/*"}},
		{PolicyRouting, "routing", []string{"Worlds/policy-routing/*"}},
		{ReversePathFilter, "rpfilter", []string{"Worlds/rp-filter/*"}},
		{ReversePathFilter6, "rpfilter6", []string{"Worlds/rp-filter-ipv6/*"}},
		{Firewalls, "", []string{"Worlds/forward-drop/*"}},
		{ClosedFirewalls, "", []string{"Worlds/forward-drop-pods/*"}},
		{FirewalledRefusals, "", []string{"Worlds/forward-drop/Scenarios"}},
	}
}

// known reports whether a capability is one of the suite's.
func known(what Capability) bool {
	return what == SCTP || what == PolicyFlows || slices.ContainsFunc(rows(), func(r row) bool { return r.what == what })
}
