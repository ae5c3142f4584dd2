// Package ipvs compares internal/ipvs with github.com/moby/ipvs, which kube-proxy uses: for the
// same objects, in one run. It needs a kernel with IPVS, so the benchmarks have the build tag
// ipvs:
//
//	go build -o /tmp/vm ./internal/vm
//	cd internal/peer
//	go test -tags ipvs -exec '/tmp/vm -kernel 6.1' -run '^$' -bench . -benchtime 3x ./ipvs
//
// It works on Linux only.
package ipvs
