package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// WaitDrift is WaitDrift of [proxy.Abilities]: it waits for changes of addresses, at which node
// ports answer, for changes of the dummy device by other programs, and until one switches forwarding
// of IPv4 off. Other changes are found by resyncs.
func (b *backend) WaitDrift(ctx context.Context) error {
	var l *nl.NetlinkSocket
	err := b.namespace.Do(func() (err error) {
		if l, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_NETCONF); err != nil {
			return err
		}
		return l.SetReceiveBufferSize(listenSize, true)
	})
	if l != nil {
		defer l.Close()
	}
	if err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	if changed, err := b.haveSurroundingsChanged(); changed || err != nil {
		return err
	}
	defer context.AfterFunc(ctx, l.Close)()
	for {
		messages, _, err := l.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS): // some were lost
			return nil
		case err != nil:
			return fmt.Errorf("ipvs: notifications: %w", err)
		}
		for i := range messages {
			if changed, err := b.concerns(&messages[i]); changed || err != nil {
				return err
			}
		}
	}
}

// listenSize is the requested size in bytes of the receive buffer for notifications: the kernel needs
// about 800 bytes of it for the notification of an address.
const listenSize = 4 << 20

// concerns reports whether a notification is about what the backend needs.
func (b *backend) concerns(m *syscall.NetlinkMessage) (bool, error) {
	if isForwardingOff(m) {
		return b.needsForwarding(), nil
	}
	return b.target.concerns(m)
}

// needsForwarding reports whether the kernel must forward IPv4.
func (b *backend) needsForwarding() bool { return slices.Contains(b.options.Families, v1.IPv4Protocol) }

// haveSurroundingsChanged reports whether forwarding is off, or addresses have changed.
func (b *backend) haveSurroundingsChanged() (changed bool, err error) {
	if b.needsForwarding() {
		k := &kernelSettings{}
		err := b.namespace.Do(func() error {
			value, ok, err := k.read(settingForward)
			changed = ok && value == "0"
			return err
		})
		if changed || err != nil {
			return changed, err
		}
	}
	return b.target.haveAddressesChanged()
}

// isForwardingOff reports whether a notification says that no interface forwards IPv4 any more.
func isForwardingOff(m *syscall.NetlinkMessage) bool {
	// From linux/netconf.h; a message begins with the family, padded.
	const sizeofNetconfMsg, ifindex, forwarding, ifindexAll = 4, 1, 2, -1
	if m.Header.Type != unix.RTM_NEWNETCONF {
		return false
	}
	attrs := attributes(m, sizeofNetconfMsg)
	index, value := attrs[ifindex].Value, attrs[forwarding].Value
	if len(index) != 4 || len(value) != 4 {
		return false
	}
	return int32(binary.NativeEndian.Uint32(index)) == ifindexAll && binary.NativeEndian.Uint32(value) == 0
}

// attributes returns the attributes of a message after a header of some bytes, none if it is malformed.
func attributes(m *syscall.NetlinkMessage, header int) map[uint16]syscall.NetlinkRouteAttr {
	all, err := nl.ParseRouteAttrAsMap(m.Data[min(header, len(m.Data)):])
	if err != nil {
		return nil
	}
	return all
}

// haveAddressesChanged reports whether the addresses of the node are other ones than those that
// were rendered, or the device lost or got addresses.
func (t *target) haveAddressesChanged() (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.compareAddresses()
}

// compareAddresses does that. It requires t.mu.
func (t *target) compareAddresses() (bool, error) {
	own, host, err := t.device.addresses()
	if err != nil {
		return false, fmt.Errorf("ipvs: addresses: %w", err)
	}
	return len(own) != t.device.bound.len() || !slices.Equal(host, t.renderer.host), nil
}

// concerns reports whether a notification is about an address that matters, and not about a
// change of the backend itself.
func (t *target) concerns(m *syscall.NetlinkMessage) (bool, error) {
	isAddition := m.Header.Type == unix.RTM_NEWADDR
	if !isAddition && m.Header.Type != unix.RTM_DELADDR || len(m.Data) < unix.SizeofIfAddrmsg {
		return false, nil
	}
	attrs := attributes(m, unix.SizeofIfAddrmsg)
	bytes := attrs[unix.IFA_LOCAL].Value
	if bytes == nil {
		bytes = attrs[unix.IFA_ADDRESS].Value
	}
	a, ok := netip.AddrFromSlice(bytes)
	if !ok || a.Is6() && a.IsLinkLocalUnicast() {
		return false, nil
	}
	index := binary.NativeEndian.Uint32(m.Data[4:])
	if index == t.device.index.Load() {
		return t.device.bound.has(a) != isAddition, nil // without t.mu: a Commit that holds it may add more addresses than the listener has room for
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// Routers renew addresses again and again. An address that goes may stay at another interface: those of
	// all pods may have that of the gateway.
	if t.device.serviceDevices[int(index)] || isAddition && slices.Contains(t.renderer.host, a) {
		return false, nil
	}
	return t.compareAddresses()
}
