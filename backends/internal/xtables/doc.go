// Package xtables keeps chains and rules of iptables in the kernel as a backend renders them.
// It is the part of a backend for iptables that does not know what its rules do.
//
// A [Backend] runs iptables-save and iptables-restore of a flavour, for each IP family. It
// compares the chains that it finds, as text, with the wanted ones, and writes those that differ. It
// changes only the chains that its [Names] own, and jumps to them in the kernel's own chains; other
// programs may have rules in the same tables.
//
// A change runs iptables-restore once. If it fails, the error wraps [proxy.ErrDataplaneLost], and the
// next Apply reads and repairs everything. If extensions of iptables are missing, its error names all
// of them.
package xtables
