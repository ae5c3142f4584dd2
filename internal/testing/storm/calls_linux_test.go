package storm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// calls decides about the system calls of an agent and its programs.
type calls struct {
	agent    int // process ID
	listener int
	// small is the size of the buffers of the agent's netlink sockets; if it is 0, they
	// get the size that they request.
	small int
	// failing says which calls fail; nil: none.
	failing atomic.Pointer[failing]
	failed  atomic.Int64
	work    sync.WaitGroup
}

// failing is the share of calls that fail, and their errors.
type failing struct {
	percent int
	errnos  []unix.Errno
}

// notification and decision are struct seccomp_notif and struct seccomp_notif_resp.
type notification struct {
	id     uint64
	thread uint32
	_      uint32
	number int32
	_      uint32
	_      uint64
	args   [6]uint64
}

type decision struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// watchCalls waits until a process has installed its filter, and then begins to decide about
// its system calls.
func watchCalls(agent, small int) (*calls, error) {
	c := &calls{agent: agent, small: small}
	process, err := unix.PidfdOpen(agent, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(process) //nolint:errcheck // it was used only to get another file
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if c.listener, err = unix.PidfdGetfd(process, listenerFile, 0); err == nil {
			break
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("the agent has no filter: %w", err)
		}
	}
	c.work.Go(c.decideAll)
	return c, nil
}

// decideAll decides until the agent and all its programs have ended.
func (c *calls) decideAll() {
	defer unix.Close(c.listener) //nolint:errcheck // the watched processes have ended
	for {
		ready := []unix.PollFd{{Fd: int32(c.listener), Events: unix.POLLIN}}
		_, err := unix.Poll(ready, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || ready[0].Revents&unix.POLLIN == 0 {
			return
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue // The thread that made the call has ended.
		}
		d := c.decide(&n)
		// This fails only if the thread that made the call has ended.
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(c.listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&d)))
	}
}

func (c *calls) decide(n *notification) decision {
	allow := decision{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if c.small > 0 && c.shrink(n) {
		return decision{id: n.id}
	}
	f := c.failing.Load()
	if f == nil || rand.IntN(100) >= f.percent {
		return allow
	}
	errno := f.errnos[rand.IntN(len(f.errnos))]
	if !c.canFail(n, &errno) {
		return allow
	}
	c.failed.Add(1)
	return decision{id: n.id, errno: -int32(errno)}
}

// canFail reports whether a call may fail with an error. It replaces the error if the call
// cannot return this one.
func (c *calls) canFail(n *notification, errno *unix.Errno) bool {
	switch n.number {
	case unix.SYS_EXECVE, unix.SYS_SOCKET:
		if *errno == unix.EINTR {
			*errno = unix.ENOMEM
		}
		return c.isAgent(n)
	case unix.SYS_SETSOCKOPT:
		const replaceTable = 64 // IPT_SO_SET_REPLACE
		if *errno == unix.EINTR {
			*errno = unix.EAGAIN // as if another program had replaced the table first
		}
		return (n.args[1] == unix.SOL_IP || n.args[1] == unix.SOL_IPV6) && n.args[2] == replaceTable
	case unix.SYS_READ, unix.SYS_RECVFROM, unix.SYS_RECVMSG:
		if *errno == unix.ENOMEM {
			*errno = unix.ENOBUFS
		}
	}
	// Programs have no signal handlers, so signals do not interrupt their calls.
	return (*errno != unix.EINTR || c.isAgent(n)) && c.isNetlink(n)
}

func (c *calls) isAgent(n *notification) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", c.agent, n.thread))
	return err == nil
}

// file returns the file that a call is about; the caller closes it.
func (c *calls) file(n *notification) (int, error) {
	process := int(n.thread) // Programs have one thread.
	if c.isAgent(n) {
		process = c.agent
	}
	of, err := unix.PidfdOpen(process, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(of) //nolint:errcheck // it was used only to get another file
	return unix.PidfdGetfd(of, int(n.args[0]), 0)
}

func (c *calls) isNetlink(n *notification) bool {
	fd, err := c.file(n)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // it is another's
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err == nil && domain == unix.AF_NETLINK
}

// shrink sets a small buffer for a netlink socket of the agent that requests a large one.
func (c *calls) shrink(n *notification) bool {
	plain := map[uint64]int{
		unix.SO_SNDBUFFORCE: unix.SO_SNDBUF, unix.SO_SNDBUF: unix.SO_SNDBUF,
		unix.SO_RCVBUFFORCE: unix.SO_RCVBUF, unix.SO_RCVBUF: unix.SO_RCVBUF,
	}[n.args[2]]
	if n.number != unix.SYS_SETSOCKOPT || n.args[1] != unix.SOL_SOCKET || plain == 0 || !c.isAgent(n) || !c.isNetlink(n) {
		return false
	}
	fd, err := c.file(n)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // it is another's
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, c.small) == nil
}

// failCalls makes a share of the system calls fail.
func (s *storm) failCalls(one *step) (func(), error) {
	p := s.agent
	if p == nil || p.calls == nil {
		return nil, nil
	}
	f := &failing{percent: 10 + int(one.Chance%85), errnos: []unix.Errno{unix.ENOMEM, unix.ENOBUFS, unix.EINTR}}
	if one.Chance%3 == 0 {
		f.errnos = f.errnos[:1+one.Chance%2]
	}
	p.mayEnd = true
	p.calls.failing.Store(f)
	before := p.calls.failed.Load()
	return func() {
		p.calls.failing.Store(nil)
		n := p.calls.failed.Load() - before
		s.judge.count("failed system calls", int(n))
		s.note("%d calls failed", n)
	}, nil
}

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
