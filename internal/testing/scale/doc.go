// Package scale measures what each backend costs at a number of Services, in a network
// namespace of its own:
//
//	VIPKIT_SERVICES=10000 VIPKIT_ENDPOINTS=10 go test -run '^$' -bench /nftables/ ./internal/testing/scale
//
// The backends are nftables, iptables, userspace and kernelspace, which has a simulated HNS whose
// calls take no time: their number counts. The floor of nftables is the bare netlink messages
// with the same elements. docs/performance.md has the figures.
package scale
