// Package prommetrics tells Prometheus what a proxy does.
//
// # Names that kube-proxy has
//
// Dashboards and alerts for kube-proxy work on: names, labels and buckets of the
// metrics that begin with kubeproxy_ are the same. Where what kube-proxy counts
// is not what the name says, the value is right instead:
//
//   - A sync programs both families at once, so it counts for each; but a Service
//     or EndpointSlice that changes counts once.
//   - kubeproxy_network_programming_duration_seconds has an observation for each
//     change, also for one whose first attempt to be programmed fails. It has no
//     bucket of 0 seconds, which is always empty.
//   - kubeproxy_sync_proxy_rules_last_timestamp_seconds is when the dataplane was
//     last known to hold what it must, be it that it was found untouched.
//   - kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds moves when there
//     is something to program, not whenever an object is heard of.
//
// Not there are sync_proxy_rules_iptables_total and _last, since the number of
// rules is not what a sync costs here (see kernel_operations_total below), and
// iptables_ct_state_invalid_dropped_packets_total and
// iptables_localhost_nodeports_accepted_packets_total: no backend has such rules.
//
// # Names of its own
//
//	vipkit_change_duration_seconds{kind,stage}  from the change of an object to the kernel, by Service
//	vipkit_syncs_total{result}                  done, partial or failed
//	vipkit_commits_total                        syncs that wrote to the kernel
//	vipkit_kernel_operations_total              what they wrote
//	vipkit_drift_repairs_total                  syncs that mended what somebody else had changed
//	vipkit_last_verified_timestamp_seconds      when the whole dataplane was last found right
//	vipkit_service_ports                        service ports that there are
//	vipkit_unprogrammed_service_ports           those that the dataplane refused last time
//	vipkit_object_problems{kind}                what is wrong with API objects
//	vipkit_node_problems{setting}               settings of the node that break Services
//
// The kinds of changes are Service and EndpointSlice. The stages are notice: from
// the change to the proxy hearing of it, known for EndpointSlices that tell when
// what they describe has changed; queue: until the Runner takes it up; apply:
// until it is in the kernel, all attempts included; total: all of that.
// What is heard before the tracker is synced is no change, and is not timed, and
// neither is what makes no difference to this node. Operations, commits and
// repairs are known of backends that count ([proxy.OperationCounter]); a repair
// at the very moment at which something else changes, too, is not seen.
//
// There is no global registry: all metrics belong to the one that [New] is given.
package prommetrics
