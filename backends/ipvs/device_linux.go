package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/rawnetlink"
)

// device is the dummy device that has the addresses of Services, so that the node takes
// packets to them in. It stays down: the kernel needs only the addresses.
type device struct {
	name string
	// index is that of the device, which changes when it is made again.
	index  atomic.Uint32
	handle *netlink.Handle
	conn   *rawnetlink.Conn // changes many addresses with one system call
	// portID tells the notifications of what conn has changed from others.
	portID uint32
	// serviceDevices are the indexes of such devices of all instances, of the last listing.
	serviceDevices map[int]bool
}

// open connects to the network namespace of the calling thread, which must be that of the handle.
func (d *device) open() (err error) {
	if d.conn, err = rawnetlink.Open(unix.NETLINK_ROUTE); err == nil {
		d.portID, err = d.conn.Port()
	}
	return err
}

// find returns the device, nil if it does not exist.
func (d *device) find() (netlink.Link, error) {
	l, err := d.handle.LinkByName(d.name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil, nil //nolint:nilnil // no device is no error
	}
	if err == nil && l.Type() != "dummy" {
		err = fmt.Errorf("device %s is of type %s, want dummy: rename it, or choose another identity", d.name, l.Type())
	}
	return l, err
}

// other finds a device of another identity. kube-proxy's device does not count.
func (d *device) other() (netlink.Link, error) {
	links, err := netns.Consistent(d.handle.LinkList)
	for _, l := range links {
		name := l.Attrs().Name
		isDevice := l.Type() == "dummy" && strings.HasSuffix(name, ipaddr.ServiceDeviceSuffix)
		if isDevice && name != d.name && name != "kube-"+ipaddr.ServiceDeviceSuffix {
			return l, err
		}
	}
	return nil, err
}

// prepare makes the device unless it exists.
func (d *device) prepare() error {
	l, err := d.find()
	if err == nil && l == nil {
		if err = d.handle.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: d.name}}); err == nil {
			l, err = d.find()
		}
	}
	switch {
	case err != nil:
		return err
	case l == nil:
		return fmt.Errorf("device %s was removed", d.name)
	}
	d.index.Store(uint32(l.Attrs().Index))
	// Another program has added those with a range or a peer: the backend itself writes and removes
	// single addresses.
	return d.removeIf(l, func(a *netlink.Addr) bool { return !isSingle(a) })
}

// removeAddresses removes all addresses of the device if it exists.
func (d *device) removeAddresses() error {
	l, err := d.find()
	if err != nil || l == nil {
		return err
	}
	return d.removeIf(l, func(*netlink.Addr) bool { return true })
}

// removeIf removes some addresses, but not link-local ones of IPv6.
func (d *device) removeIf(l netlink.Link, must func(*netlink.Addr) bool) error {
	all, err := netns.Consistent(func() ([]netlink.Addr, error) { return d.handle.AddrList(l, unix.AF_UNSPEC) })
	if err != nil {
		return err
	}
	for i := range all {
		if a, _ := netip.AddrFromSlice(all[i].IP); !must(&all[i]) || a.IsLinkLocalUnicast() && a.Is6() {
			continue
		}
		if err := d.handle.AddrDel(l, &all[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
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
	return d.handle.LinkDel(l)
}

// addresses returns those of the device, and those of all other interfaces of the node
// that are not for Services.
func (d *device) addresses() (own, host []netip.Addr, err error) {
	links, err := netns.Consistent(d.handle.LinkList)
	if err != nil {
		return nil, nil, err
	}
	d.serviceDevices = map[int]bool{}
	for _, l := range links {
		a := l.Attrs()
		d.serviceDevices[a.Index] = l.Type() == "dummy" && strings.HasSuffix(a.Name, ipaddr.ServiceDeviceSuffix)
	}
	all, err := netns.Consistent(func() ([]netlink.Addr, error) { return d.handle.AddrList(nil, unix.AF_UNSPEC) })
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

// commit changes addresses. The kernel carries out operations after one that fails.
func (d *device) commit(ctx context.Context, run []op) (done []op, err error) {
	var r rawnetlink.Requests
	for i := range run {
		typ, flags := uint16(unix.RTM_NEWADDR), uint16(unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
		if run[i].Kind == backends.Remove {
			typ, flags = unix.RTM_DELADDR, 0
		}
		r.End(d.appendAddress(r.Begin(typ, flags), run[i].Key.addr.Addr()))
	}
	failed, err := d.conn.Do(ctx, &r)
	if err != nil {
		return nil, lost(err)
	}
	if len(failed) == 0 {
		return run, nil
	}
	bad := make(map[int]bool, len(failed))
	for _, f := range failed {
		bad[f.Index] = true
	}
	first := &failed[0]
	return without(run, bad), explain(fmt.Errorf("address %v of device %s: %w", run[first.Index].Key.addr.Addr(), d.name, first))
}

// appendAddress appends the message about an address, which is valid at once.
func (d *device) appendAddress(b []byte, a netip.Addr) []byte {
	family := byte(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	b = append(b, family, byte(a.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE)
	b = binary.NativeEndian.AppendUint32(b, d.index.Load())
	b = rawnetlink.AppendAttr(b, unix.IFA_LOCAL, a.AsSlice())
	return rawnetlink.AppendAttr(b, unix.IFA_ADDRESS, a.AsSlice())
}
