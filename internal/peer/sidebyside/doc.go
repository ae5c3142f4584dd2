// Package sidebyside measures what it costs to keep a kernel in step with an API
// server: the backends of this repository beside the proxiers of kube-proxy, in one
// run, on the same objects. Everybody works in a process and a network namespace of
// their own, and begins with the same API objects and ends in the kernel.
//
//	go test -count=1 -v ./sidebyside
//	VIPKIT_SERVICES=1000,5000 go test -count=1 -v -timeout 60m ./sidebyside
//
// The test logs a table, and fails where kube-proxy is cheaper. It works on Linux only.
package sidebyside
