package ipvs

import (
	"context"
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
	// index is that of the device, which changes when it is made again.
	index atomic.Uint32
	at    *netns.NS
	// bound has the addresses that the backend has given to the device: it tells notifications of
	// these from others, also while a Commit that holds the lock of the target changes it.
	bound sync.Map
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

// prepare makes the device unless it exists.
func (d *device) prepare() error {
	l, err := d.find()
	if err == nil && l == nil {
		if err = d.at.Netlink().LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: d.name}}); err == nil {
			l, err = d.find()
		}
	}
	switch {
	case err != nil:
		return err
	case l == nil:
		return fmt.Errorf("device %s was removed", d.name)
	}
	return d.removeForeign(l)
}

// removeForeign removes addresses with a range or a peer, but not link-local ones of IPv6: the backend itself writes and
// removes single addresses.
func (d *device) removeForeign(l netlink.Link) error {
	all, err := netns.Consistent(func() ([]netlink.Addr, error) { return d.at.Netlink().AddrList(l, unix.AF_UNSPEC) })
	if err != nil {
		return err
	}
	for i := range all {
		if a, _ := netip.AddrFromSlice(all[i].IP); isSingle(&all[i]) || a.IsLinkLocalUnicast() && a.Is6() {
			continue
		}
		if err := d.at.Netlink().AddrDel(l, &all[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %v of device %s: %w", all[i].IPNet, d.name, err)
		}
	}
	return nil
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

// isForServices reports whether a device has addresses of Services. It takes note of the index of the backend's own one.
func (d *device) isForServices(l netlink.Link) bool {
	a := l.Attrs()
	is := l.Type() == "dummy" && strings.HasSuffix(a.Name, ipaddr.ServiceDeviceSuffix)
	if is && a.Name == d.name {
		d.index.Store(uint32(a.Index))
	}
	return is
}

// addresses returns those of the device, and those of all other interfaces of the node
// that are not for Services.
func (d *device) addresses() (own, host []netip.Addr, err error) {
	links, err := netns.Consistent(d.at.Netlink().LinkList)
	if err != nil {
		return nil, nil, err
	}
	d.serviceDevices = map[int]bool{}
	for _, l := range links {
		d.serviceDevices[l.Attrs().Index] = d.isForServices(l)
	}
	all, err := netns.Consistent(func() ([]netlink.Addr, error) { return d.at.Netlink().AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, nil, err
	}
	for _, x := range all {
		a, ok := netip.AddrFromSlice(x.IP)
		a = a.Unmap()
		switch {
		case !ok || a.IsLinkLocalUnicast() && a.Is6():
		case uint32(x.LinkIndex) == d.index.Load():
			if isSingle(&x) {
				own = append(own, a)
			}
		case !d.serviceDevices[x.LinkIndex] && !slices.Contains(host, a):
			host = append(host, a)
		}
	}
	slices.SortFunc(host, netip.Addr.Compare)
	return own, host, nil
}

// commit changes addresses, also after one that fails.
func (d *device) commit(ctx context.Context, run []op) map[int]error {
	l := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: int(d.index.Load())}}
	bad := map[int]error{}
	for i := range run {
		if err := ctx.Err(); err != nil {
			bad[i] = err
			continue
		}
		a, isRemoval := run[i].Key.addr.Addr(), run[i].Kind == backends.Remove
		at := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD}
		d.expect(a, !isRemoval) // before the notification
		change := d.at.Netlink().AddrReplace
		if isRemoval {
			change = d.at.Netlink().AddrDel
		}
		if failure := change(l, at); failure != nil {
			d.expect(a, isRemoval)
			bad[i] = explain(fmt.Errorf("address %v of device %s: %w", a, d.name, failure))
		}
	}
	return bad
}

// expect records that the device gets an address, or loses it.
func (d *device) expect(a netip.Addr, has bool) {
	if has {
		d.bound.Store(a, true)
	} else {
		d.bound.Delete(a)
	}
}

// expectOnly records that the device has some addresses and no others. It never drops an address that stays:
// WaitDrift would take the removal of a dropped address by another program for a removal by the backend.
func (d *device) expectOnly(all []netip.Addr) {
	has := make(map[any]bool, len(all))
	for _, a := range all {
		has[a] = true
		d.expect(a, true)
	}
	d.bound.Range(func(a, _ any) bool {
		if !has[a] {
			d.bound.Delete(a)
		}
		return true
	})
}

// isAsExpected reports whether the device has as many addresses as the backend has given it.
func (d *device) isAsExpected(own []netip.Addr) bool {
	n := 0
	d.bound.Range(func(any, any) bool {
		n++
		return true
	})
	return len(own) == n
}
