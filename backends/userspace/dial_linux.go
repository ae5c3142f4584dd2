package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/proxy"
)

// dialer gives what reaches endpoints if the user brings nothing.
func (b *Backend) dialer() dialer {
	if b.options.Capture == TPROXY {
		return b.sockets
	}
	return asNode{b.sockets}
}

var errCaptured = errors.New("the endpoint is itself an address of a Service, which would lead back here")

// asNode reaches endpoints from any address of the node. What it sends is captured
// like anybody's: an endpoint that is a frontend could go round in circles until
// nothing is left.
type asNode struct{ *sockets }

func (s asNode) begin(d engine.Dial) (fd int, err error) {
	if s.captured.has(v1.ProtocolTCP, d.To) {
		return -1, fmt.Errorf("%v: %w", d.To, errCaptured)
	}
	err = s.do(func() error {
		fd, err = engine.Begin(netip.AddrPort{}, d.To)
		return err
	})
	return fd, err
}

func (s asNode) dial(ctx context.Context, d engine.Dial) (conn net.Conn, err error) {
	if s.captured.has(d.Protocol, d.To) {
		return nil, fmt.Errorf("%v: %w", d.To, errCaptured)
	}
	err = s.do(func() error {
		dialer := net.Dialer{KeepAlive: -1} // an endpoint that is gone is removed, by others
		conn, err = dialer.DialContext(ctx, strings.ToLower(string(d.Protocol)), d.To.String())
		return err
	})
	if err != nil {
		return nil, err // conn would be a nil pointer in an interface
	}
	return conn, nil
}

type end struct {
	protocol v1.Protocol
	addr     netip.AddrPort
}

// captured knows all frontends.
type captured struct {
	// isLocal reports whether an address is one of the node's own.
	isLocal func(netip.Addr) bool

	mu    sync.RWMutex
	count map[end]int
	node  *proxy.Node
}

// follow takes the changes between two snapshots.
func (c *captured) follow(old, next proxy.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = map[end]int{}
	}
	c.node = next.Node()
	for change := range next.Changes(old) {
		c.add(change.New, 1)
		c.add(change.Old, -1)
	}
}

func (c *captured) add(p *proxy.ServicePort, n int) {
	if p == nil {
		return
	}
	for i := range p.Frontends {
		e := end{p.Name.Protocol, p.Frontends[i].Addr}
		if c.count[e] += n; c.count[e] == 0 {
			delete(c.count, e)
		}
	}
}

// has reports whether an address is a frontend, or a node port of this node, which may
// have more addresses than it is known by.
func (c *captured) has(protocol v1.Protocol, to netip.AddrPort) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.count[end{protocol, to}] > 0 {
		return true
	}
	anywhere := netip.IPv4Unspecified()
	if to.Addr().Is6() {
		anywhere = netip.IPv6Unspecified()
	}
	return c.count[end{protocol, netip.AddrPortFrom(anywhere, to.Port())}] > 0 &&
		c.node != nil && (slices.Contains(c.node.Addresses, to.Addr()) || c.isLocal(to.Addr()))
}
