package storm

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// listenerFile is the descriptor of an agent's seccomp listener.
const listenerFile = 100

// lastQuietFile is the highest of the descriptors for the standard streams, changes and
// events. Reads and writes of these are not watched.
const lastQuietFile = eventsFile

// watchedCalls are the system calls that may be made to fail.
func watchedCalls() []uint32 {
	return []uint32{
		unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_RECVMSG,
		unix.SYS_SETSOCKOPT, unix.SYS_SOCKET, unix.SYS_EXECVE,
	}
}

// installFilter installs a filter: each watched system call of this process, and of all
// programs that it starts later, waits for a decision through the listener.
func installFilter() error {
	filter := callFilter()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	flags := unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC |
		unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(flags), uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	// Until the storm reads from the listener, calls wait.
	return unix.Dup3(int(fd), listenerFile, unix.O_CLOEXEC)
}

// callFilter returns the filter for the watched calls. Offsets are those of struct
// seccomp_data.
func callFilter() []unix.SockFilter {
	const number, firstArgument = 0, 16
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// equal skips that many instructions if the loaded value equals k.
	equal := func(k uint32, steps int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: uint8(steps)}
	}
	end := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	all := watchedCalls()
	out := []unix.SockFilter{load(number)}
	for i, c := range all {
		out = append(out, equal(c, len(all)-i+5)) // to the last step
	}
	return append(out,
		equal(unix.SYS_READ, 2), equal(unix.SYS_WRITE, 1), end(unix.SECCOMP_RET_ALLOW),
		load(firstArgument),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: lastQuietFile, Jt: 1},
		end(unix.SECCOMP_RET_ALLOW),
		end(unix.SECCOMP_RET_USER_NOTIF),
	)
}
