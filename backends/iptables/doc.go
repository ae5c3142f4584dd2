// Package iptables programs the virtual IPs of Services with iptables, for nodes whose
// other programs or operators use iptables. It runs iptables-restore once for a change and
// IP family, of the legacy flavour or of the one that keeps its tables in nf_tables.
//
// # What is in the kernel
//
// The names, with KUBE in the place of the identity's name, are those that
// operators know from kube-proxy:
//
//	nat     PREROUTING, OUTPUT ─▶ VIPKIT-SERVICES       one rule for each frontend
//	                                ├─▶ VIPKIT-SVC-...   its endpoints; policy Local: VIPKIT-SVL-...
//	                                ├─▶ VIPKIT-EXT-...   external addresses: by source, marks
//	                                ├─▶ VIPKIT-FW-...    only from allowed sources
//	                                └─▶ VIPKIT-NODEPORTS at the node's addresses, the same
//	        INPUT              ─▶ VIPKIT-INPUT          clears the mark
//	        POSTROUTING        ─▶ VIPKIT-POSTROUTING    masquerades marked packets, and hairpins
//	filter  INPUT, FORWARD, OUTPUT, new connections that were not translated
//	                           ─▶ VIPKIT-PROXY-FIREWALL
//	                                ├─▶ VIPKIT-EXTERNAL-SERVICES, VIPKIT-NODEPORTS  without endpoints, or not for this source
//	                                └─▶ VIPKIT-SERVICES  the same for ClusterIPs
//	        FORWARD, OUTPUT    ─▶ VIPKIT-UNSERVED       after that: ports that no Service has
//	        FORWARD            ─▶ VIPKIT-FORWARD        accepts marked packets and known connections; drops
//	                                                    packets of no connection from pods, and to service ranges
//	        INPUT              ─▶ VIPKIT-HEALTH-CHECKS  accepts health checks of load balancers
//
// There are fewer rules than with kube-proxy: endpoints have rules in the chain of their
// Service instead of chains of their own, and one rule of VIPKIT-POSTROUTING masquerades all
// hairpins.
//
// # What a change writes
//
// If an endpoint is added or removed, the backend writes the chain of its Service in table
// nat; for a frontend, it writes one rule of VIPKIT-SERVICES. In the legacy flavour, the
// kernel replaces whole tables, so that any change takes as long as copying the table.
//
// iptables-restore commits one table after the other. Rules that refuse packets are added
// before, and removed after, those that translate them, so that no packet leaves the node
// untranslated in between.
//
// # After a restart, and later
//
// A new process reads the output of iptables-save, writes what differs (nothing, if nothing
// has changed), and removes the chains that are not wanted. A resync does the same and so repairs drift.
// A Runner resyncs at each ResyncInterval, and as soon as the backend notices a change of
// another program. The flavour that uses nf_tables notices all changes of its tables at once, and
// only then a resync reads them. The legacy flavour does not report changes: the backend
// notices within a second if the number of rules differs, and a resync finds all other changes, or
// the next one if a change was made while the resync read the rules. Changes that were
// undone before a resync are not noticed.
//
// # Limits
//
// A packet traverses the rules of frontends until one matches. The first packet of a
// connection to no Service traverses all of them.
//
// For session affinity, the kernel remembers 100 clients of an endpoint, unless
// its module xt_recent was loaded with another number. The backend reports that limit.
//
// Packet filters outside of iptables must accept forwarded traffic. Node ports do not answer
// at loopback addresses, unless a backend of package userspace serves them there.
package iptables
