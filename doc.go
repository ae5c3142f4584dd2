// Package vipkit lists the packages of a library for building a Kubernetes service
// proxy: the part of a node agent that makes the virtual IPs of Services work.
//
// Data flows one way: kubewatch, manifest or a watch of your own passes API objects
// to package proxy, which makes Snapshots of them; a backend programs the kernel to
// match a Snapshot. Every package imports only packages below it in this list:
//
//   - examples/...: small programs that assemble the parts into working proxies
//   - [github.com/vipkit/vipkit/backends/nftables]: virtual IPs in nf_tables
//     maps, over netlink; the cost of a change depends on its size
//   - [github.com/vipkit/vipkit/backends/iptables]: virtual IPs in iptables, for
//     older kernels, and for operators who use iptables
//   - [github.com/vipkit/vipkit/backends/ipvs]: virtual IPs in IPVS, with its schedulers,
//     and draining of connections
//   - [github.com/vipkit/vipkit/backends/userspace]: virtual IPs carried by the
//     process itself, with failover and draining
//   - [github.com/vipkit/vipkit/backends/kernelspace]: virtual IPs in the virtual
//     switch of Windows; [github.com/vipkit/vipkit/backends/kernelspace/hcn]: what it
//     calls, [github.com/vipkit/vipkit/backends/kernelspace/hns]: that interface of
//     Windows, and [github.com/vipkit/vipkit/backends/kernelspace/hcntest]: a simulation
//   - [github.com/vipkit/vipkit/backends/backendtest]: the conformance suite, which
//     tests backends in a real kernel with real packets
//   - [github.com/vipkit/vipkit/backends]: makes a backend of a pure function and a
//     small kernel edge
//   - [github.com/vipkit/vipkit/proxy/conntrack]: the removal of stale flows
//   - [github.com/vipkit/vipkit/proxy/kubewatch]: Services and EndpointSlices from an
//     API server
//   - [github.com/vipkit/vipkit/proxy/health]: health checks for kubelets and load
//     balancers, as kube-proxy answers them
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
//     [github.com/vipkit/vipkit/allocator/repair]: metrics of allocators, and the
//     repair of allocations
//   - [github.com/vipkit/vipkit/allocator/filestore],
//     [github.com/vipkit/vipkit/allocator/kubestore], and the module
//     github.com/vipkit/vipkit/allocator/etcdstore: stores of allocations
//   - [github.com/vipkit/vipkit/allocator/storetest]: tests of the contract of stores
//   - [github.com/vipkit/vipkit/allocator]: allocates addresses and node ports, each
//     at most once; it does not import the packages of the proxy
//   - [github.com/vipkit/vipkit/affinity]: session affinity of Services
//
// A Run method returns when its context ends. If it can fail, it returns nil then.
//
// Start with the README, or with the example below, then with package proxy.
package vipkit
