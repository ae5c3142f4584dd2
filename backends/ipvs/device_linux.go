package ipvs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// device is the dummy device that has the addresses of Services, so that the node takes
// packets to them in. It stays down: the kernel needs only the addresses.
type device struct {
	name string
	// index is the index of the device, which changes when it is made again.
	index atomic.Uint32
	at    *netns.NS
	// bound has the addresses that the backend has given to the device: it tells notifications of
	// these from others, also while a Commit that holds the lock of the target changes it.
	mu    sync.Mutex
	bound map[netip.Addr]bool
	// serviceDevices are the indexes of such devices of all instances, of the last listing.
	serviceDevices map[int]bool
}

// find returns the device, nil if it does not exist.
func (d *device) find() (netlink.Link, error) {
	l, err := d.at.Netlink().LinkByName(d.name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil, nil //nolint:nilnil // no device is no error
	}
	if err == nil && l.Type() != "dummy" {
		err = fmt.Errorf("device %s is of type %s, want dummy: rename it, or choose another identity", d.name, l.Type())
	}
	return l, err
}

// prepare makes the device unless it exists, removes what is not the backend's from it, and returns the addresses of
// the device and of the node, as addresses does.
func (d *device) prepare() (own, host []netip.Addr, err error) {
	l, err := d.find()
	if err == nil && l == nil {
		err = d.at.Netlink().LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: d.name}})
	}
	if err != nil {
		return nil, nil, err
	}
	own, host, foreign, err := d.addresses()
	for i := range foreign {
		if err := d.at.Netlink().AddrDel(d.link(), &foreign[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil, nil, fmt.Errorf("remove address %v of device %s: %w", foreign[i].IPNet, d.name, err)
		}
	}
	d.expectOnly(own)
	return own, host, err
}

// link returns the device as the last listing has found it.
func (d *device) link() netlink.Link {
	return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: int(d.index.Load())}}
}

func isSingle(a *netlink.Addr) bool {
	ones, bits := a.Mask.Size()
	return ones == bits && (a.Peer == nil || a.Peer.IP.Equal(a.IP))
}

// remove removes the device with all addresses.
func (d *device) remove() error {
	l, err := d.find()
	if err != nil || l == nil {
		return err
	}
	return d.at.Netlink().LinkDel(l)
}

// addresses returns the single addresses of the device, the addresses of all interfaces of the node
// that are not for Services, and the addresses of the device with a range or a peer, which are foreign: the backend itself
// writes and removes single addresses. Link-local addresses of IPv6 do not count.
func (d *device) addresses() (own, host []netip.Addr, foreign []netlink.Addr, err error) {
	links, err := netns.Consistent(d.at.Netlink().LinkList)
	if err != nil {
		return nil, nil, nil, err
	}
	d.serviceDevices = map[int]bool{}
	for _, l := range links {
		a := l.Attrs()
		d.serviceDevices[a.Index] = l.Type() == "dummy" && strings.HasSuffix(a.Name, ipaddr.ServiceDeviceSuffix)
		if a.Name == d.name {
			d.index.Store(uint32(a.Index))
		}
	}
	all, err := netns.Consistent(func() ([]netlink.Addr, error) { return d.at.Netlink().AddrList(nil, unix.AF_UNSPEC) })
	for i := range all {
		a, ok := netip.AddrFromSlice(all[i].IP)
		a = a.Unmap()
		switch {
		case !ok || a.IsLinkLocalUnicast() && a.Is6():
		case uint32(all[i].LinkIndex) != d.index.Load():
			if !d.serviceDevices[all[i].LinkIndex] && !slices.Contains(host, a) {
				host = append(host, a)
			}
		case isSingle(&all[i]):
			own = append(own, a)
		default:
			foreign = append(foreign, all[i])
		}
	}
	slices.SortFunc(host, netip.Addr.Compare)
	return own, host, foreign, err
}

// change adds an address, or removes it.
func (d *device) change(o *op) error {
	a, isRemoval := o.Key.addr.Addr(), o.Kind == backends.Remove
	at := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD}
	change := d.at.Netlink().AddrReplace
	if isRemoval {
		change = d.at.Netlink().AddrDel
	}
	d.expect(a, !isRemoval) // before the notification
	if err := change(d.link(), at); err != nil {
		d.expect(a, isRemoval)
		return explain(fmt.Errorf("address %v of device %s: %w", a, d.name, err))
	}
	return nil
}

// expect records that the device gets an address, or loses it.
func (d *device) expect(a netip.Addr, has bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if has {
		d.bound[a] = true
	} else {
		delete(d.bound, a)
	}
}

// expects reports whether the device has an address by the backend.
func (d *device) expects(a netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bound[a]
}

// expectOnly records that the device has some addresses and no others.
func (d *device) expectOnly(all []netip.Addr) {
	bound := make(map[netip.Addr]bool, len(all))
	for _, a := range all {
		bound[a] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bound = bound
}

// isAsExpected reports whether the device has as many addresses as the backend has given it.
func (d *device) isAsExpected(own []netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(own) == len(d.bound)
}
