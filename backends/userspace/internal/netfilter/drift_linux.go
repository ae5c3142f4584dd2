package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// Drifted is Drifted of [proxy.Abilities]. It reports commits of other programs to the backend's
// tables, and checks the routing and whether the node can use other IP families now.
func (c *Capture) Drifted(ctx context.Context) bool {
	return c.Conn.Drifted(ctx) || c.looksDifferent() || slices.ContainsFunc(c.served(), func(f v1.IPFamily) bool {
		state, err := c.routes.state(f)
		return err != nil || state != routingComplete
	})
}

// WaitDrift is WaitDrift of [proxy.Abilities]. It also returns after changes of the backend itself to
// its routing: Drifted tells these apart.
func (c *Capture) WaitDrift(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error)
	go func() {
		err := c.awaitRouting(ctx)
		cancel()
		ended <- err
	}()
	err := c.Conn.WaitDrift(ctx)
	cancel()
	if other := <-ended; other == nil || errors.Is(err, context.Canceled) {
		return other
	}
	return err
}

// listenRouting joins the groups of everything on which the routing depends.
func listenRouting() (*rawnetlink.Listener, error) {
	l, err := rawnetlink.Listen(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("userspace: %w", err)
	}
	return l, nil
}

// awaitRouting waits for a change that concerns the routing.
func (c *Capture) awaitRouting(ctx context.Context) error {
	for {
		messages, err := c.events.Receive(ctx)
		switch {
		case errors.Is(err, rawnetlink.ErrMissed):
			return nil
		case err != nil:
			return fmt.Errorf("userspace: %w", err)
		}
		for m, ok := messages.Next(); ok; m, ok = messages.Next() {
			if c.concerns(m) {
				return nil
			}
		}
	}
}

// loopback is the index that the interface lo has in each network namespace.
const loopback = 1

// concerns reports whether a notification is about a rule or route that the backend may have added,
// or about the interface lo. The kernel removes the routes of an interface that goes down, in IPv4
// without notification.
func (c *Capture) concerns(m rawnetlink.Message) bool {
	const header = unix.SizeofRtMsg // a rule has a header of the same size, and the same attributes
	switch m.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(m.Payload) >= 8 && binary.NativeEndian.Uint32(m.Payload[4:]) == loopback
	case unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(m.Payload) < header {
			return false
		}
		attrs := rawnetlink.Attrs(m.Payload[header:])
		number := func(attr uint16) int {
			b := attrs.Find(attr)
			if len(b) != 4 {
				return 0
			}
			return int(binary.NativeEndian.Uint32(b))
		}
		table, priority := number(unix.RTA_TABLE), number(unix.RTA_PRIORITY)
		isRule := m.Type == unix.RTM_NEWRULE || m.Type == unix.RTM_DELRULE
		return table == kinds.RoutingTable(c.Identity.Mark) || isRule && priority == kinds.RulePriority(c.Identity.Mark) || !isRule && priority == kinds.RoutingTable(c.Identity.Mark)
	}
	return false
}
