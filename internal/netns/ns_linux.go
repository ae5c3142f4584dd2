package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NS is a network namespace. Its methods may be called from several goroutines
// at once, but none after Close.
type NS struct {
	file    *os.File
	netlink *netlink.Handle
}

var errGoexit = errors.New("netns: the function ended its goroutine")

// New makes a network namespace for tests: the loopback interface is up, and
// what would make tests slow or unsteady is off (reverse path filters,
// duplicate address detection, limits on the rate of ICMP errors, redirects).
// Processes of the caller's group may use ping sockets in it.
// It takes the privileges that [Privileged] speaks of.
func New() (n *NS, err error) {
	err = inThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() error {
		n, err = open()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("netns: new namespace: %w", err)
	}
	if err := n.settle(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Current gives the network namespace that the caller runs in, as it is.
// Closing it does not end it. The handle to configure it with knows the netlink
// families that are named, or the usual ones.
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
// What f makes there (sockets, processes) stays in the namespace. Goroutines
// that f starts do not run in it. f runs in a goroutine of its own, so it must
// not end the test that it is part of.
func (n *NS) Do(f func() error) error {
	return inThread(func() error { return unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET) }, f)
}

// Netlink gives a handle to configure the namespace with. It knows the families
// NETLINK_ROUTE and NETLINK_NETFILTER. Close closes it.
func (n *NS) Netlink() *netlink.Handle { return n.netlink }

// Close gives up the namespace. The kernel ends it, with the interfaces that
// are in it, once no socket and no process is left there.
func (n *NS) Close() error {
	n.netlink.Close()
	return n.file.Close()
}

// open takes hold of the namespace that the thread is in.
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

// inThread runs f on a thread that has gone through enter, which changes the
// thread's namespace.
func inThread(enter, f func() error) error {
	result := make(chan error, 1)
	go func() {
		err := errGoexit
		defer func() { result <- err }()
		err = locked(enter, f)
	}()
	return <-result
}

func locked(enter, f func() error) error {
	runtime.LockOSThread()
	before, err := openCurrent()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		// A thread that cannot be led back stays locked, and so ends with
		// its goroutine instead of serving others in the wrong namespace.
		if unix.Setns(int(before.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		_ = before.Close() // It was open for reading only.
	}()
	if err := enter(); err != nil {
		return err
	}
	return f()
}
