package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NS is a network namespace. Its methods may be called from several goroutines
// at once, but none after Close.
type NS struct {
	file    *os.File
	netlink *netlink.Handle
}

var errGoexit = errors.New("netns: the function called runtime.Goexit")

// New makes a network namespace for tests: the loopback interface is up; reverse
// path filters, duplicate address detection, rate limits of ICMP errors and
// redirects, which make tests slow or flaky, are off. Processes of the caller's
// group may use ping sockets in it. New needs the privileges that [Privileged] obtains.
func New() (n *NS, err error) {
	err = inThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func(func()) error {
		n, err = open()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("netns: new namespace: %w", err)
	}
	if err := n.configure(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Current returns the network namespace of the caller, and does not configure it. It
// continues to exist after Close. The handle of [NS.Netlink] has the given netlink
// families, by default those that [NS.Netlink] names.
func Current(families ...int) (*NS, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n, err := open(families...)
	if err != nil {
		return nil, fmt.Errorf("netns: current namespace: %w", err)
	}
	return n, nil
}

// Do runs f on a thread that is in the namespace, and returns what f returns.
// Sockets and processes that f makes stay in the namespace. Goroutines that f
// starts do not run in it. f runs in a goroutine of its own: FailNow of a test ends
// only f, and Do returns an error. Only with CAP_SYS_ADMIN a process enters a namespace other than its own.
func (n *NS) Do(f func() error) error {
	return n.DoUntil(func(func()) error { return f() })
}

// DoUntil is Do for what waits for long: once f has made its sockets, it calls leave, and goes on in the
// namespace of the process, on any thread.
func (n *NS) DoUntil(f func(leave func()) error) error {
	return inThread(func() error { return enter(n.file) }, f)
}

// Netlink returns a handle to configure the namespace, by default with the families
// NETLINK_ROUTE and NETLINK_NETFILTER. Close closes it.
func (n *NS) Netlink() *netlink.Handle { return n.netlink }

// Close releases the namespace. The kernel removes it, with its interfaces, once it
// has no socket and no process.
func (n *NS) Close() error {
	n.netlink.Close()
	return n.file.Close()
}

// open opens the namespace of the calling thread.
func open(families ...int) (*NS, error) {
	if len(families) == 0 {
		families = []int{unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER}
	}
	file, err := openCurrent()
	if err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandle(families...)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &NS{file: file, netlink: handle}, nil
}

func openCurrent() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// enter brings the thread into a namespace. It needs no privilege if the thread is there already.
func enter(file *os.File) error {
	current, err := openCurrent()
	if err != nil {
		return err
	}
	defer current.Close() //nolint:errcheck // it is open for reading only
	now, err := current.Stat()
	if err != nil {
		return err
	}
	then, err := file.Stat()
	if err != nil || os.SameFile(now, then) {
		return err
	}
	return unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
}

// inThread runs f on a thread of its own after change, which changes the thread's
// namespace.
func inThread(change func() error, f func(leave func()) error) error {
	result := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() { result <- err }()
		err = locked(change, f)
	}()
	return <-result
}

func locked(change func() error, f func(leave func()) error) error {
	runtime.LockOSThread()
	before, err := openCurrent()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	leave := sync.OnceFunc(func() {
		// A thread that cannot return to its namespace stays locked, so that it
		// ends with its goroutine and no other goroutine runs on it.
		if enter(before) == nil {
			runtime.UnlockOSThread()
		}
		_ = before.Close() // It is open for reading only, so no write can fail.
	})
	defer leave()
	if err := change(); err != nil {
		return err
	}
	return f(leave)
}
