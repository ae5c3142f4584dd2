package host

import (
	"errors"
	"net"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// Sockets opens sockets in the network namespace of the backend.
type Sockets struct {
	ns *netns.NS
	// own says that this is the namespace of the whole process, so that any thread can
	// open sockets.
	own bool
	// routes sends queries for routes.
	routes *Query
}

// OpenSockets returns Sockets for the network namespace of the calling thread.
func OpenSockets() (*Sockets, error) {
	ns, err := netns.Current(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	s := &Sockets{ns: ns, own: isProcessNamespace()}
	if s.routes, err = s.Query(unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return s, nil
}

// Close closes the connections to the kernel. Other sockets stay open.
func (s *Sockets) Close() error { return errors.Join(s.ns.Close(), s.routes.Close()) }

// Netlink returns the netlink handle of the namespace.
func (s *Sockets) Netlink() *netlink.Handle { return s.ns.Netlink() }

// isProcessNamespace reports whether goroutines run in the namespace of the caller. A
// caller in another one has locked a thread there, so that a new goroutine gets another
// thread.
func isProcessNamespace() bool {
	here, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	same := make(chan bool, 1)
	go func() {
		there, err := os.Stat("/proc/thread-self/ns/net")
		same <- err == nil && os.SameFile(here, there)
	}()
	return <-same
}

// Do calls f on a thread in the namespace of the backend, so that new sockets belong to it.
func (s *Sockets) Do(f func() error) error {
	if s.own {
		return f()
	}
	return s.ns.Do(f)
}

// Dial has dial make one connection, by a dialer whose socket belongs to the namespace of the backend. No thread
// waits for the answer of the peer.
func (s *Sockets) Dial(d *net.Dialer, dial func(*net.Dialer) error) error {
	if s.own {
		return dial(d)
	}
	return s.ns.DoUntil(func(leave func()) error {
		inside, made := *d, false
		inside.Control = func(network, address string, c syscall.RawConn) (err error) {
			if made { // Package net makes another socket after some errors of the first one, which would be elsewhere.
				return unix.EADDRNOTAVAIL
			}
			if made = true; d.Control != nil {
				err = d.Control(network, address, c)
			}
			leave()
			return err
		}
		return dial(&inside)
	})
}
