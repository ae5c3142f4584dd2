package netnstest

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DenyIPv6 makes IPv6 sockets fail from now on, in all threads of the process and in programs that it
// starts, as with the boot parameter ipv6.disable=1.
func DenyIPv6(t testing.TB) {
	t.Helper()
	filterCalls(t,
		load(callNumber), unless(unix.SYS_SOCKET, 3),
		load(callFirst), unless(unix.AF_INET6, 1),
		give(unix.SECCOMP_RET_ERRNO|uint32(unix.EAFNOSUPPORT)),
		give(unix.SECCOMP_RET_ALLOW))
}

// Offsets in struct seccomp_data: of the number of a system call, and of its first argument.
const callNumber, callFirst = 0, 16

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func unless(k uint32, skip uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: skip}
}

func give(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

// filterCalls attaches a seccomp filter to all threads of the process.
func filterCalls(t testing.TB, filter ...unix.SockFilter) {
	t.Helper()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		t.Fatalf("seccomp: %v", errno)
	}
}
