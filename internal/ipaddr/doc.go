// Package ipaddr reads IP addresses and prefixes as Kubernetes objects hold
// them: stored objects may have leading zeros in IPv4 octets, which net/netip
// rejects, and IPv4-mapped IPv6 addresses, which net/netip treats as IPv6.
// It also has the protocol numbers of IP headers, and names of devices.
package ipaddr
