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

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// WaitDrift is WaitDrift of [proxy.Abilities]: it waits for changes of addresses, at which node
// ports answer, for changes of the dummy device by other programs, and until one switches forwarding
// of IPv4 off. Other changes are found by resyncs.
func (t *target) WaitDrift(ctx context.Context) error {
	var l *rawnetlink.Listener
	if err := t.device.at.Do(func() (err error) {
		l, err = rawnetlink.Listen(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_NETCONF)
		return err
	}); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	defer l.Close() //nolint:errcheck // nobody uses it any more
	changed, err := t.haveSurroundingsChanged()
	for !changed && err == nil {
		var messages rawnetlink.Messages
		switch messages, err = l.Receive(ctx); {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, rawnetlink.ErrMissed):
			return nil
		case err != nil:
			return fmt.Errorf("ipvs: notifications: %w", err)
		}
		for m, ok := messages.Next(); ok && !changed && err == nil; m, ok = messages.Next() {
			changed, err = t.concerns(&m)
		}
	}
	return err
}

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
func isForwardingOff(m *rawnetlink.Message) bool {
	// From linux/netconf.h; a message begins with the family, padded.
	const sizeofNetconfMsg, ifindex, forwarding, ifindexAll = 4, 1, 2, -1
	if m.Type != unix.RTM_NEWNETCONF || len(m.Payload) < sizeofNetconfMsg {
		return false
	}
	attrs := rawnetlink.Attrs(m.Payload[sizeofNetconfMsg:])
	index, value := attrs.Find(ifindex), attrs.Find(forwarding)
	if len(index) != 4 || len(value) != 4 {
		return false
	}
	return int32(binary.NativeEndian.Uint32(index)) == ifindexAll && binary.NativeEndian.Uint32(value) == 0
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
func (t *target) concerns(m *rawnetlink.Message) (bool, error) {
	if isForwardingOff(m) {
		return t.options.needsForwarding(), nil
	}
	isAddition := m.Type == unix.RTM_NEWADDR
	if !isAddition && m.Type != unix.RTM_DELADDR || len(m.Payload) < unix.SizeofIfAddrmsg {
		return false, nil
	}
	attrs := rawnetlink.Attrs(m.Payload[unix.SizeofIfAddrmsg:])
	bytes := attrs.Find(unix.IFA_LOCAL)
	if bytes == nil {
		bytes = attrs.Find(unix.IFA_ADDRESS)
	}
	a, ok := netip.AddrFromSlice(bytes)
	if !ok || a.Is6() && a.IsLinkLocalUnicast() {
		return false, nil
	}
	index := binary.NativeEndian.Uint32(m.Payload[4:])
	if index == t.device.index.Load() {
		return t.device.expects(a) != isAddition, nil // without t.mu: a Commit that holds it may add more addresses than the listener has room for
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// Routers renew addresses again and again. An address that goes may stay at another interface: the interfaces of
	// all pods may have the address of the gateway.
	if t.device.serviceDevices[int(index)] || isAddition && slices.Contains(t.exact.host, a) {
		return false, nil
	}
	return t.compareAddresses()
}
