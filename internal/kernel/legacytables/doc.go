// Package legacytables reads the tables of iptables' legacy flavour from the kernel, without a program.
//
// On other systems than Linux the package is empty.
package legacytables
