package userspace_test

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
)

// without tells a process of the test program that it must make all its attempts to use netfilter
// fail.
const without = "VIPKIT_TEST_WITHOUT_NETFILTER"

// Local routes work on a kernel without netfilter, or where it may not be used: the test runs in a
// process whose attempts to use it fail, as on such a kernel.
func TestLocalRoutesWithoutNetfilter(t *testing.T) {
	n := newNetwork(t)
	needLocalRoutes(t, n)
	if os.Getenv(without) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLocalRoutesWithoutNetfilter$", "-test.v")
		cmd.Env = append(os.Environ(), without+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	n.serve(t, podServer)
	denyNetfilter(t)
	if _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err == nil {
		t.Fatal("opening a netfilter socket: got no error, want one")
	}
	b := n.start(t, userspace.Options{Capture: userspace.LocalRoutes})
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
	apply(t, b, snapshot(two))
	n.wantAnswer(t, two)
	if b.Drifted(t.Context()) {
		t.Error("Drifted: got true, want false")
	}
	if err := b.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.local(t); len(got) != 0 {
		t.Errorf("local routes after Cleanup: got %q, want none", got)
	}
}

// denyNetfilter makes NETLINK_NETFILTER sockets, by which nf_tables is written, fail from now on, in
// all threads of the process.
func denyNetfilter(t *testing.T) {
	t.Helper()
	filterCalls(t,
		load(callNumber), unless(unix.SYS_SOCKET, 5),
		load(callFirst), unless(unix.AF_NETLINK, 3),
		load(callThird), unless(unix.NETLINK_NETFILTER, 1),
		give(unix.SECCOMP_RET_ERRNO|uint32(unix.EPROTONOSUPPORT)),
		give(unix.SECCOMP_RET_ALLOW))
}

// denyIPv6 makes IPv6 sockets fail, as on a kernel without IPv6.
func denyIPv6(t *testing.T) {
	t.Helper()
	filterCalls(t,
		load(callNumber), unless(unix.SYS_SOCKET, 3),
		load(callFirst), unless(unix.AF_INET6, 1),
		give(unix.SECCOMP_RET_ERRNO|uint32(unix.EAFNOSUPPORT)),
		give(unix.SECCOMP_RET_ALLOW))
}

// Offsets in struct seccomp_data: of the number of a system call, and of its arguments.
const callNumber, callFirst, callThird = 0, 16, 32

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func unless(k uint32, skip uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: skip}
}

func give(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

// filterCalls attaches a seccomp filter to all threads of the process.
func filterCalls(t *testing.T, filter ...unix.SockFilter) {
	t.Helper()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		t.Fatalf("seccomp: %v", errno)
	}
}
