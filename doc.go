// Package vipkit is the map of a library with which anyone builds a Kubernetes
// service proxy: the part of a node agent that turns Services and
// EndpointSlices into virtual IPs that work.
//
// Data flows one way: objects come in by kubewatch, by manifest or by a watch of
// your own; package proxy makes Snapshots of them, and a backend brings these into
// the kernel. Every package imports only what stands below it in this list:
//
//   - examples/...: small programs that assemble the parts into working proxies
//   - [github.com/vipkit/vipkit/backends/nftables]: virtual IPs in nf_tables
//     maps, over netlink, at a cost that follows the size of the change
//   - [github.com/vipkit/vipkit/backends/iptables]: virtual IPs in iptables, for
//     nodes and operators that know them there
//   - [github.com/vipkit/vipkit/backends/userspace]: virtual IPs carried by the
//     process itself, with failover and draining
//   - [github.com/vipkit/vipkit/backends/script]: the edge of backends that run a
//     program which reads scripts
//   - [github.com/vipkit/vipkit/backends/backendtest]: the conformance suite that
//     every backend passes, on real kernels with real packets
//   - [github.com/vipkit/vipkit/backends]: a backend out of one pure function
//     and one small kernel edge
//   - [github.com/vipkit/vipkit/proxy/conntrack]: the removal of stale flows
//   - [github.com/vipkit/vipkit/proxy/kubewatch]: Services and EndpointSlices from an
//     API server
//   - [github.com/vipkit/vipkit/proxy/health]: the answers for kubelets and load
//     balancers, those of kube-proxy
//   - [github.com/vipkit/vipkit/proxy/inspect]: a page that shows what a dataplane
//     holds, and why a packet goes where it goes
//   - [github.com/vipkit/vipkit/proxy/manifest]: Services and EndpointSlices from files
//   - [github.com/vipkit/vipkit/proxy/prommetrics]: metrics for Prometheus, by
//     kube-proxy's names
//   - [github.com/vipkit/vipkit/proxy]: the model (ServicePort, Snapshot), the
//     ServiceChangeTracker that builds it, the Runner that drives a Backend, and
//     Route, the specification as a function
//   - [github.com/vipkit/vipkit/endpoints]: which endpoints a node may use
//   - [github.com/vipkit/vipkit/allocator/prommetrics],
//     [github.com/vipkit/vipkit/allocator/repair]: allocators measured, and mended
//   - [github.com/vipkit/vipkit/allocator/filestore],
//     [github.com/vipkit/vipkit/allocator/kubestore],
//     [github.com/vipkit/vipkit/allocator/rangemap], and the module
//     github.com/vipkit/vipkit/allocator/etcdstore: where allocations are kept
//   - [github.com/vipkit/vipkit/allocator]: addresses and node ports that are never
//     handed out twice; it needs nothing of all the others
//   - [github.com/vipkit/vipkit/affinity]: session affinity as Services ask for it
//
// Start with the README, then with package proxy.
package vipkit
