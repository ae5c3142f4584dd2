//go:build !linux

package host

import "syscall"

// BindToLoopback does nothing: the system drops packets to loopback addresses from other machines.
func BindToLoopback(_, _ string, _ syscall.RawConn) error { return nil }
