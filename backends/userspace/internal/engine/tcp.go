package engine

import (
	"errors"
	"net"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Listener accepts the connections of clients.
type Listener struct {
	net.Listener

	// Origin is the origin of the listener's connections.
	Origin Origin
	// Destination returns the frontend that a client has connected to; it must not
	// wait. Nil stands for the local address of the connection.
	Destination func(net.Conn) (netip.AddrPort, error)
}

// Serve accepts connections, and connects them to endpoints, until the engine or the
// listener is closed. It closes the listener. It does not wait.
func (e *Engine) Serve(l Listener) {
	e.listen(l.Listener, func() error {
		conn, err := l.Accept()
		if err == nil {
			e.admit(conn, l)
		}
		return err
	})
}

// admit begins to serve a connection. At the limit it waits for a free slot, and with it the
// listener. All listeners compete for free slots, so that each gets some, however low the
// limit is.
func (e *Engine) admit(conn net.Conn, l Listener) {
	e.counts.accepted.Add(1)
	flow, err := flowOf(conn, l)
	by := e.holderOf(flow)
	switch {
	case err != nil:
		e.counts.denied.Add(1)
		reset(conn)
		return
	case !e.tasks.quota.take(by):
		e.counts.crowded.Add(1)
		reset(conn)
		return
	}
	e.tasks.slots <- struct{}{} // Close ends all connections, and so frees all slots.
	leave := func() {
		e.tasks.quota.give(by) // first: the slot must not be free while its share is in use
		<-e.tasks.slots
	}
	started := e.tasks.run(func() {
		defer leave()
		e.serve(conn, flow)
	})
	if !started {
		leave()
		reset(conn)
	}
}

// serve carries one connection to its end.
func (e *Engine) serve(conn net.Conn, flow Flow) {
	c := &connection{client: conn}
	if !e.tasks.track(c) {
		return
	}
	defer e.tasks.untrack(c)
	e.counts.connections.Add(1)
	defer e.counts.connections.Add(-1)
	if err := e.establish(c, flow); err != nil {
		e.counts.lost(err)
		_ = c.Close()
		return
	}
	e.relay(c) // Called from here, the stack of a silent connection's goroutine stays small.
}

// lost counts a flow that did not reach an endpoint, by the cause.
func (c *counts) lost(err error) {
	switch {
	case errors.Is(err, errClosed):
	case errors.Is(err, errDenied):
		c.denied.Add(1)
	case errors.Is(err, ErrNoPort) || errors.Is(err, errNoResources):
		c.crowded.Add(1)
	default:
		c.failed.Add(1)
	}
}

func flowOf(conn net.Conn, l Listener) (Flow, error) {
	f := Flow{Protocol: v1.ProtocolTCP, Client: addrOf(conn.RemoteAddr()), Frontend: addrOf(conn.LocalAddr()), Origin: l.Origin}
	if l.Destination == nil {
		return f, nil
	}
	to, err := l.Destination(conn)
	f.Frontend = ipaddr.Unmap(to)
	return f, err
}

func addrOf(a net.Addr) netip.AddrPort {
	if t, ok := a.(interface{ AddrPort() netip.AddrPort }); ok {
		return ipaddr.Unmap(t.AddrPort())
	}
	return netip.AddrPort{}
}

// establish connects a client to an endpoint. It returns errClosed if the connection was closed in the meantime.
func (e *Engine) establish(c *connection, flow Flow) error {
	decision := e.decide(flow)
	if decision.route.Action != proxy.Forward {
		var err error
		if decision, err = e.awaitEndpoint(e.tasks.ctx, decision); err != nil {
			return err
		}
	}
	conn, endpoint, err := e.connect(e.tasks.ctx, &decision)
	if err != nil {
		return err
	}
	if !c.attach(conn, endpoint.Addr, decision.port) {
		return errClosed
	}
	c.touch(e.now())
	c.relaying.Store(true)
	return e.sendProxyHeader(c, &decision)
}

// sendProxyHeader sends the header of the PROXY protocol, if Hooks.ProxyProtocol returns a
// version.
func (e *Engine) sendProxyHeader(c *connection, d *decision) error {
	version := e.config.Hooks.ProxyProtocol
	if version == nil {
		return nil
	}
	header := proxyHeader(version(d.port.Name), d.flow.Client, d.flow.Frontend)
	if len(header) == 0 {
		return nil
	}
	_, err := c.upstream.Write(header)
	return err
}
