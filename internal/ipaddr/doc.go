// Package ipaddr reads IP addresses and prefixes as Kubernetes objects hold
// them: stored objects may carry leading zeros in IPv4 octets and IPv4
// addresses in IPv6 form, which package net/netip refuses or keeps apart.
package ipaddr
