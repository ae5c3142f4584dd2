package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// Dump returns all objects of the default identity, as text.
func Dump(ctx context.Context, c Capture) (string, error) {
	b, err := New(Options{Capture: c})
	if err != nil {
		return "", err
	}
	defer b.Close() //nolint:errcheck // the backend was used for reading only
	var lines []string
	if l, ok := b.listeners.(*sharedListeners); ok {
		for o, e := range l.capture.List(ctx) {
			err = errors.Join(err, e)
			lines = append(lines, fmt.Sprintf("%+v", o))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), err
}

// ReachFrom makes a port the source port of the next connection to an endpoint, with TPROXY.
func (b *Backend) ReachFrom(port uint16) {
	if l, ok := b.listeners.(*sharedListeners); ok && l.capture.Dialer != nil {
		l.capture.Dialer.StartAt(port)
	}
}

// OnAddresses is a backend with the capture Addresses in a network namespace. Only Windows has that
// capture, but what it does there works on Linux as well.
type OnAddresses struct {
	*Backend
	ns      *netns.NS
	sockets *host.Sockets
}

// NewOnAddresses returns a backend for the network namespace of the calling thread, which adds
// addresses to a link.
func NewOnAddresses(o Options, link string) (*OnAddresses, error) {
	ns, err := netns.Current(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	sockets, err := host.OpenSockets()
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	o.Capture, o.Addresses.manager, o.Addresses.namespace = Addresses, linkAddresses{ns, link}, sockets
	b, err := New(o)
	if err != nil {
		return nil, errors.Join(err, sockets.Close(), ns.Close())
	}
	return &OnAddresses{b, ns, sockets}, nil
}

// Close closes the backend.
func (b *OnAddresses) Close() error {
	return errors.Join(b.Backend.Close(), b.sockets.Close(), b.ns.Close())
}

// linkAddresses adds addresses to a link of a namespace.
type linkAddresses struct {
	ns   *netns.NS
	link string
}

func (l linkAddresses) Addresses(context.Context) (all []netip.Addr, err error) {
	list, err := l.ns.Netlink().AddrList(nil, netlink.FAMILY_ALL)
	for i := range list {
		if a, ok := netip.AddrFromSlice(list[i].IP); ok {
			all = append(all, a.Unmap())
		}
	}
	return all, err
}

// Add adds an address that the kernel first looks for on the link, if it is of IPv6: as on Windows,
// no socket can listen at it for some time.
func (l linkAddresses) Add(_ context.Context, a netip.Addr) error {
	link, addr, err := l.entry(a)
	if err != nil {
		return err
	}
	return l.ns.Netlink().AddrAdd(link, addr)
}

func (l linkAddresses) Remove(_ context.Context, a netip.Addr) error {
	link, addr, err := l.entry(a)
	if err != nil {
		return err
	}
	return l.ns.Netlink().AddrDel(link, addr)
}

func (l linkAddresses) entry(a netip.Addr) (netlink.Link, *netlink.Addr, error) {
	link, err := l.ns.Netlink().LinkByName(l.link)
	if err != nil {
		return nil, nil, err
	}
	addr, err := netlink.ParseAddr(fmt.Sprintf("%v/%d", a, a.BitLen()))
	return link, addr, err
}
