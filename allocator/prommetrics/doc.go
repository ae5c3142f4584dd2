// Package prommetrics provides Prometheus metrics of allocators.
//
// # Names of Kubernetes
//
// Dashboards and alerts for the API server keep working: names, labels and buckets of the
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
// The scope is static if the request names a key, otherwise dynamic. The pool counts
// allocated and available keys as they change, so a scrape costs no more with a million
// addresses than with one. Where Kubernetes leaves the meaning open:
//
//   - A range that is draining has no available keys.
//   - A port that several ranges have counts in each.
//   - A request that fails counts once for each range that might have served it.
//   - The types of repair errors are invalid, repair (a key was used and not held, or held
//     for another owner), duplicate, outOfRange, and leak (an unused key was freed).
//
// # Names of its own
//
//	vipkit_allocator_store_errors_total           failed reads of the store, and ended watches
//	vipkit_allocator_last_sync_timestamp_seconds  when the whole store was last read
//
// All metrics are registered in the registry that [New] gets; there is no global one.
package prommetrics
