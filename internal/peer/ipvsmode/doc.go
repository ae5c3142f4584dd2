// Package ipvsmode tests that the backends ipvs and nftables take over from kube-proxy's mode ipvs,
// whose proxiers run in a process of their own, with connections open. They need a kernel with IPVS,
// so the tests have the build tag ipvs:
//
//	go build -o /tmp/vm ../vm
//	go test -count=1 -v -tags ipvs -exec '/tmp/vm -modules br_netfilter,ip_vs' ./ipvsmode
//
// It works on Linux only.
package ipvsmode
