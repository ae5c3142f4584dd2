// Package iptables programs the virtual IPs of Services with iptables, for nodes
// where the rules of other programs are there too, or where operators know them.
// It starts iptables-restore once for a change, and for an IP family; of the legacy
// flavour and of the one that keeps its tables in nf_tables.
//
// # What is in the kernel
//
// The names, with KUBE in the place of the identity's name, are those that
// operators know from kube-proxy:
//
//	nat     PREROUTING, OUTPUT ─▶ VIPKIT-SERVICES       one rule a frontend
//	                                ├─▶ VIPKIT-SVC-...   its endpoints; policy Local: VIPKIT-SVL-...
//	                                ├─▶ VIPKIT-EXT-...   external addresses: by source, marks
//	                                ├─▶ VIPKIT-FW-...    only from allowed sources
//	                                └─▶ VIPKIT-NODEPORTS at the node's addresses, the same
//	        INPUT              ─▶ VIPKIT-INPUT          takes the mark off
//	        POSTROUTING        ─▶ VIPKIT-POSTROUTING    masquerades what is marked, and what would talk to itself
//	filter  INPUT, FORWARD, OUTPUT, new connections that were not translated
//	                           ─▶ VIPKIT-PROXY-FIREWALL
//	                                ├─▶ VIPKIT-EXTERNAL-SERVICES, VIPKIT-NODEPORTS  without endpoints, or not for this source
//	                                └─▶ VIPKIT-SERVICES  the same for ClusterIPs; ports that no Service has
//	        FORWARD, packets of no connection
//	                           ─▶ VIPKIT-FORWARD         drops those from pods, and to service ranges
//
// There are fewer rules than with kube-proxy: endpoints are translated to in the
// chain of their Service, without a chain each, and one rule finds all connections
// that come back to where they are from.
//
// # What a change writes
//
// An endpoint that comes or goes: the chain of its Service, in table nat. A
// frontend that comes or goes: one rule of VIPKIT-SERVICES. The legacy kernel
// takes in a table as a whole, so a change takes the time that copying the table
// does, whatever its size.
//
// Tables are committed one after the other. What refuses packets comes before, and
// goes after, what translates them, so that none leaves the node untranslated in
// between.
//
// # After a restart, and between
//
// A new process reads what iptables-save prints, writes what differs (nothing, if
// nothing has changed), and removes what nobody wants. The same puts right what
// others have changed; a Runner does it each ResyncInterval, in the flavour that
// uses nf_tables only if somebody else was there. The legacy flavour has nothing that
// tells: whatever others do is seen when everything is read again, at the next resync,
// and not before. What happens while everything is read may be seen by the one after
// that. Nobody sees what others have done and undone in between.
//
// # Limits
//
// A packet passes a rule for each frontend until it finds its own, and a new
// connection that is for no Service passes all.
//
// The kernel remembers 100 clients of an endpoint for session affinity, unless
// its module xt_recent was loaded with another number; see
// [Options.AffinityClients].
//
// Forwarded traffic must be accepted by whatever else filters on the node. Node
// ports do not answer at loopback addresses.
package iptables
