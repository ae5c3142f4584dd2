// Package sidebyside measures the cost of applying API objects to the kernel: with the
// backends of this repository and with the proxiers of kube-proxy, in one run, with the same
// objects. Each runs in a process and a network namespace of its own. The measurement begins
// with the API objects and ends when the kernel has the rules.
//
//	go test -count=1 -v ./sidebyside
//	VIPKIT_SERVICES=1000,5000 go test -count=1 -v -timeout 60m ./sidebyside
//
// The test logs a table, and fails if kube-proxy is cheaper. It works on Linux only. The mode
// ipvs needs a kernel with IPVS, so its test has the build tag ipvs:
//
//	go build -o /tmp/vm ../vm
//	VIPKIT_SERVICES=300 go test -count=1 -v -tags ipvs -exec '/tmp/vm -modules br_netfilter,ip_vs' -run IPVS ./sidebyside
package sidebyside
