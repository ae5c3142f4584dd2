// Package prommetrics provides metrics of a proxy for Prometheus.
//
// # Names that kube-proxy has
//
// Dashboards and alerts for kube-proxy work: names, labels and buckets of the
// metrics that begin with kubeproxy_ are the same. These values differ:
//
//   - A sync programs both IP families at once. Its duration counts once, with the ip_family of
//     the node's first address, so that sums over ip_family are right; a failure and the
//     timestamps are the same for both. The change of a Service or EndpointSlice counts once.
//
//   - kubeproxy_network_programming_duration_seconds has an observation for each
//     change, also if its first sync fails, and no bucket of 0 seconds, which is always empty.
//
//   - kubeproxy_sync_proxy_rules_last_timestamp_seconds is when the dataplane was
//     last known to be right, also because it was verified.
//
//   - kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds changes when there
//     is something to program, not with each object that is received.
//
//   - kubeproxy_sync_proxy_rules_iptables_total has the rules of all chains of the backend, also those
//     that lead there from chains of the kernel, and kubeproxy_sync_proxy_rules_iptables_last those that the
//     last sync wrote, in both tables: 0 if everything was there.
//
//   - kubeproxy_sync_full_proxy_rules_duration_seconds and kubeproxy_sync_partial_proxy_rules_duration_seconds
//     are there in all modes, as are the metrics of connection tracking on Linux.
//
// There are no kubeproxy_iptables_ct_state_invalid_dropped_packets_total and
// kubeproxy_iptables_localhost_nodeports_accepted_packets_total: no backend counts packets in nfacct, and a
// backend of its own serves node ports at loopback addresses. There is no
// kubeproxy_nftables_localhost_nodeport_rejected_packets_total: UDP, which kube-proxy rejects there, is served.
//
// # Names of its own
//
//	vipkit_change_duration_seconds{kind,stage}  from the change of an object to the kernel, by Service
//	vipkit_syncs_total{result}                  done, partial or failed
//	vipkit_commits_total                        syncs that wrote to the kernel
//	vipkit_kernel_operations_total              what they wrote
//	vipkit_drift_repairs_total                  syncs that repaired what another program had changed
//	vipkit_last_verified_timestamp_seconds      when the whole dataplane was last found right
//	vipkit_service_ports                        all service ports
//	vipkit_unprogrammed_service_ports           those that the dataplane refused in the last sync
//	vipkit_service_port_limits                  what is kept only in part, by service port
//	vipkit_object_problems{kind}                problems of API objects
//	vipkit_node_problems{setting}               settings of the node that break Services
//
// With [Options.Traffic], and a backend that counts (CountTraffic of [proxy.Abilities]), also by service port,
// with the labels namespace, service, port, protocol and family:
//
//	vipkit_service_connections_total            connections that were forwarded to endpoints
//	vipkit_service_packets_total{direction}     packets in, to endpoints, and out, back to clients
//	vipkit_service_bytes_total{direction}       their bytes
//	vipkit_service_traffic_failures_total       scrapes without these, because reading them failed
//
// With a backend that carries connections itself (CountConnections of [proxy.Abilities]), also:
//
//	vipkit_userspace_connections                 TCP connections that are open
//	vipkit_userspace_sessions                    current UDP sessions
//	vipkit_userspace_accepted_connections_total  TCP connections that were accepted
//	vipkit_userspace_refused_total{reason}       connections and sessions that were not served
//	vipkit_userspace_listener_errors_total       errors of listeners
//	vipkit_userspace_bytes_total{direction}      bytes of data in, to endpoints, and out, back to clients
//
// The reasons are failed: no endpoint could be reached; denied: no route forwards them; crowded:
// they were beyond a limit.
//
// The kinds of changes are Service and EndpointSlice. The stages are notice: from
// the change until the proxy receives it, for EndpointSlices with a trigger time;
// queue: until the Runner takes it up; apply: until it is in the kernel, all attempts
// included; total: all of that. Changes before the tracker is synced, and those without effect
// on this node, are not timed. Operations, commits and repairs need a backend that counts
// (Operations of [proxy.Abilities]); a repair together with another change is not counted.
//
// There is no global registry: New registers all metrics with the registry that it is given.
package prommetrics
