package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// WaitDrift is WaitDrift of [proxy.Abilities]: it waits for changes of addresses, at which node
// ports answer, for changes of the dummy device by other programs, and until one switches forwarding
// of IPv4 off. Other changes are found by resyncs.
func (t *target) WaitDrift(ctx context.Context) error {
	var l *nl.NetlinkSocket
	err := t.device.at.Do(func() (err error) {
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
	if changed, err := t.haveSurroundingsChanged(); changed || err != nil {
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
			if changed, err := t.concerns(&messages[i]); changed || err != nil {
				return err
			}
		}
	}
}

// listenSize is the requested size in bytes of the receive buffer for notifications: the kernel needs
// about 800 bytes of it for the notification of an address.
const listenSize = 4 << 20

// haveSurroundingsChanged reports whether forwarding is off, or addresses have changed.
func (t *target) haveSurroundingsChanged() (changed bool, err error) {
	if t.options.needsForwarding() {
		err := t.device.at.Do(func() error {
			text, err := os.ReadFile(settingForward)
			changed = strings.TrimSpace(string(text)) == "0"
			return err
		})
		if changed || err != nil {
			return changed, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.compareAddresses()
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

// compareAddresses reports whether the addresses of the node are other ones than those that
// were rendered, or the device lost or got addresses. It requires t.mu.
func (t *target) compareAddresses() (bool, error) {
	own, host, _, err := t.device.addresses()
	if err != nil {
		return false, fmt.Errorf("ipvs: addresses: %w", err)
	}
	return !t.device.isAsExpected(own) || !slices.Equal(host, t.exact.host), nil
}

// concerns reports whether a notification is about forwarding or an address that matters, and not about a
// change of the backend itself.
func (t *target) concerns(m *syscall.NetlinkMessage) (bool, error) {
	if isForwardingOff(m) {
		return t.options.needsForwarding(), nil
	}
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
		_, isBound := t.device.bound.Load(a)
		return isBound != isAddition, nil // without t.mu: a Commit that holds it may add more addresses than the listener has room for
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// Routers renew addresses again and again. An address that goes may stay at another interface: those of
	// all pods may have that of the gateway.
	if t.device.serviceDevices[int(index)] || isAddition && slices.Contains(t.exact.host, a) {
		return false, nil
	}
	return t.compareAddresses()
}
