// Package e2e tests examples/kubeproxy from end to end: three nodes that are network
// namespaces, each with an agent of its own, pods that are network namespaces with real
// servers, and a real API server with etcd and the endpoint slice controller between
// them.
//
// The tests do only the work of a kubelet and of a cloud provider: they start and stop the
// servers of pods, report that pods are ready, and set the load balancer addresses of
// Services.
//
//	outside ─── fabric ─┬─ node-1 (nftables) ─── pods
//	                    ├─ node-2 (nftables) ─── pods
//	                    └─ node-3 (iptables) ─── pods
//
// At first, two of the nodes run kube-proxy, which is replaced as in docs/replacing-kube-proxy.md. The agents
// have only the permissions of examples/kubeproxy/deploy.
//
// Most tests share one cluster, since it needs about ten seconds to start.
package e2e
