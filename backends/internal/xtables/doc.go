// Package xtables keeps chains and rules of iptables in the kernel as a backend renders them.
// It is the part of a backend for iptables that does not know what its rules do.
//
// A [Backend] runs iptables-save and iptables-restore of a flavour, for each IP family. It
// adopts the chains and rules that it finds, writes what differs, and removes what is not
// wanted. It changes only the chains that its [Names] own, and jumps to them in the kernel's
// own chains; other programs may have rules in the same tables.
//
// A change runs iptables-restore once. If it fails, what it has committed is undone, or the
// error wraps [proxy.ErrDataplaneLost], and the next Apply repairs everything. If extensions
// of iptables are missing, the error names all of them.
package xtables
