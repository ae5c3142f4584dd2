// Package prommetrics tells Prometheus what allocators do.
//
// # Names that Kubernetes has
//
// Dashboards and alerts for the API server work on: names, labels and buckets of the
// metrics that begin with kube_apiserver_ and apiserver_ are the same.
//
//	kube_apiserver_clusterip_allocator_allocated_ips{cidr}
//	kube_apiserver_clusterip_allocator_available_ips{cidr}
//	kube_apiserver_clusterip_allocator_allocation_total{cidr,scope}
//	kube_apiserver_clusterip_allocator_allocation_errors_total{cidr,scope}
//	kube_apiserver_clusterip_allocator_allocation_duration_seconds{cidr}
//	kube_apiserver_nodeport_allocator_allocated_ports
//	kube_apiserver_nodeport_allocator_available_ports
//	kube_apiserver_nodeport_allocator_allocation_total{scope}
//	kube_apiserver_nodeport_allocator_allocation_errors_total{scope}
//	apiserver_clusterip_repair_ip_errors_total{type}
//	apiserver_clusterip_repair_reconcile_errors_total
//	apiserver_nodeport_repair_port_errors_total{type}
//	apiserver_nodeport_repair_reconcile_errors_total
//
// The scope is static where somebody has asked for a particular key, otherwise
// dynamic. What is allocated and available is counted by the pool as it goes, so a
// scrape costs no more with a million addresses than with one. Where the meaning had
// to be chosen:
//
//   - Nothing is available from a range that is draining.
//   - A request that fails counts once for each range that might have served it.
//   - The types of repair are invalid, repair (what was used and not held, or held for
//     another), duplicate, outOfRange, and leak where something was freed.
//
// # Names of its own
//
//	vipkit_allocator_store_errors_total           reads of the store that failed, and ends of following it
//	vipkit_allocator_last_sync_timestamp_seconds  when the store was last read whole
//
// There is no global registry: all metrics belong to the one that [New] is given.
package prommetrics
