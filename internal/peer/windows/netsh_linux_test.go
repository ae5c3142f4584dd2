package windows_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// serveNetsh has netsh change the addresses of the interfaces of a network namespace, in which the
// system runs.
func (s *system) serveNetsh(ns *netns.NS) {
	s.t.Helper()
	l, err := ns.Listen(s.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // The listener has been closed.
			}
			if err := answerNetsh(ns, conn); err != nil {
				s.t.Errorf("netsh: %v", err)
			}
		}
	})
	s.t.Cleanup(func() {
		_ = l.Close() // Nobody uses it.
		served.Wait()
	})
	s.env = append(s.env, "VIPKIT_NETSH="+portOf(l))
}

// answerNetsh does what the arguments say, one on a line, and sends the exit status. A request that
// ends early comes from a process that was killed.
func answerNetsh(ns *netns.NS, conn net.Conn) error {
	text, err := io.ReadAll(conn)
	if err == nil && len(text) > 0 {
		status := byte(0)
		if err = netsh(ns.Netlink(), strings.Fields(string(text))); err != nil {
			status = 1
		}
		_, _ = conn.Write([]byte{status})
	}
	_ = conn.Close() // The other end has all, or is gone.
	return err
}

// netsh adds or removes an address.
func netsh(kernel *netlink.Handle, args []string) error {
	named := map[string]string{}
	for _, a := range args {
		if name, value, is := strings.Cut(a, "="); is {
			named[name] = value
		}
	}
	text := strings.TrimSuffix(named["address"], "/128")
	a, err := netip.ParseAddr(text)
	if err != nil {
		return fmt.Errorf("%q: %w", args, err)
	}
	link, err := kernel.LinkByName(named["name"] + named["interface"])
	if err != nil {
		return fmt.Errorf("%q: %w", args, err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if slices.Contains(args, "delete") {
		return kernel.AddrDel(link, address)
	}
	return kernel.AddrAdd(link, address)
}

// hasAddress reports whether an interface of a network namespace has an address.
func hasAddress(ns *netns.NS, name, address string) (bool, error) {
	link, err := ns.Netlink().LinkByName(name)
	if err != nil {
		return false, err
	}
	all, err := ns.Netlink().AddrList(link, netlink.FAMILY_V4)
	return slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.IP.String() == address }), err
}
