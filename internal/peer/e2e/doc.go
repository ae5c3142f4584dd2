// Package e2e tests examples/kubeproxy from end to end: three nodes that are network
// namespaces, each with an agent of its own, pods that are network namespaces with real
// servers, and a real API server with etcd and the endpoint slice controller between
// them.
//
// Only what a kubelet and a cloud would do is done by the tests: they start and stop the
// servers of pods, report that pods are ready, and give Services their load balancer
// addresses.
//
//	outside ─── fabric ─┬─ node-1 (nftables) ─── pods
//	                    ├─ node-2 (nftables) ─── pods
//	                    └─ node-3 (iptables) ─── pods
//
// First of all, two of the nodes run kube-proxy, which is replaced as README says. The agents
// may do in the API what examples/kubeproxy/deploy lets them do, and nothing else.
//
// All tests share one cluster, since making one takes some ten seconds.
package e2e
