// Package ipvsmode tests the backend ipvs beside kube-proxy's mode ipvs, whose proxiers run in a
// process of their own: that it decides like them, except where they do not do what Kubernetes
// documents, and that it and the backend nftables take over from them with connections open. They
// need a kernel with IPVS, so the tests have the build tag ipvs:
//
//	go build -o /tmp/vm ../vm
//	go test -count=1 -v -tags ipvs -exec '/tmp/vm -modules br_netfilter,ip_vs' ./ipvsmode
//
// It works on Linux only.
package ipvsmode
