package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/rawnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Drifted implements [proxy.DriftChecker]. IPVS and ipsets have no events and no generation, so
// only reading everything shows whether another program changed them.
func (b *backend) Drifted(context.Context) bool { return true }

// WaitDrift implements [proxy.DriftChecker]: it waits for changes of addresses, at which node
// ports answer, for changes of the dummy device by other programs, and until one switches forwarding
// of IPv4 off. Other changes are found by resyncs.
func (b *backend) WaitDrift(ctx context.Context) error {
	var l *rawnetlink.Listener
	err := b.namespace.Do(func() (err error) {
		l, err = rawnetlink.Listen(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_NETCONF)
		return err
	})
	if err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	defer l.Close() //nolint:errcheck // nothing was written
	if changed, err := b.haveSurroundingsChanged(); changed || err != nil {
		return err
	}
	for {
		messages, err := l.Receive(ctx)
		switch {
		case errors.Is(err, rawnetlink.ErrMissed):
			return nil
		case err != nil:
			return fmt.Errorf("ipvs: %w", err)
		}
		for m, ok := messages.Next(); ok; m, ok = messages.Next() {
			if changed, err := b.concerns(m); changed || err != nil {
				return err
			}
		}
	}
}

// concerns reports whether a notification is about what the backend needs.
func (b *backend) concerns(m rawnetlink.Message) (bool, error) {
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
func isForwardingOff(m rawnetlink.Message) bool {
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
	return len(own) != t.bound || !slices.Equal(host, t.renderer.host), nil
}

// concerns reports whether a notification is about an address that matters, and not about a
// change of the backend itself.
func (t *target) concerns(m rawnetlink.Message) (bool, error) {
	if m.Type != unix.RTM_NEWADDR && m.Type != unix.RTM_DELADDR || len(m.Payload) < unix.SizeofIfAddrmsg {
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
		return m.Port != t.device.portID, nil // without t.mu: a Commit that holds it may add more addresses than the listener has room for
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// Routers renew addresses again and again. An address that goes may stay at another interface: those of
	// all pods may have that of the gateway.
	if t.device.serviceDevices[int(index)] || m.Type == unix.RTM_NEWADDR && slices.Contains(t.renderer.host, a) {
		return false, nil
	}
	return t.compareAddresses()
}

var _ proxy.DriftChecker = (*backend)(nil)
