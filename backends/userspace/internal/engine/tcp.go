package engine

import (
	"errors"
	"net"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// Door is where connections come in.
type Door struct {
	Listener net.Listener
	// Origin is where the connections of this door come from.
	Origin Origin
	// Destination tells which frontend a connection asked for, and waits for
	// nothing. Nil stands for the local address of the connection.
	Destination func(net.Conn) (netip.AddrPort, error)
}

// Serve accepts connections, and gives them to endpoints, until the engine or the
// listener is closed. Other errors of the listener are counted, and it is asked
// again after a while. Serve closes the listener.
func (e *Engine) Serve(d Door) error {
	if !e.tasks.adopt(d.Listener) {
		return net.ErrClosed
	}
	defer e.tasks.release(d.Listener)
	defer d.Listener.Close() //nolint:errcheck // what matters is that it is closed
	var pause backoff
	for {
		conn, err := d.Listener.Accept()
		switch {
		case err == nil:
			pause = 0
			e.admit(conn, d)
		case e.tasks.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			e.report(err)
			pause.wait(e.tasks.ctx)
		}
	}
}

// admit begins to serve a connection, once there are not too many. The door waits
// for that, and other doors have the same right to what becomes free: however few
// connections there may be, no door is left out.
func (e *Engine) admit(conn net.Conn, d Door) {
	e.counts.accepted.Add(1)
	flow, err := flowOf(conn, d)
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
	e.tasks.slots <- struct{}{} // When the engine ends, all of them become free.
	e.tasks.enter()
	leave := func() {
		defer e.tasks.leave()
		e.tasks.quota.give(by) // first: who sees that there is room may have it
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
	l := &link{client: e.own(conn)}
	if !e.tasks.adopt(l) {
		return
	}
	defer e.tasks.release(l)
	e.counts.connections.Add(1)
	defer e.counts.connections.Add(-1)
	if err := e.carry(l, flow); err != nil {
		e.counts.lost(err)
		l.abort()
	}
}

// lost counts a flow that came to no endpoint, by the reason for it.
func (c *counts) lost(err error) {
	switch {
	case errors.Is(err, errDenied):
		c.denied.Add(1)
	case errors.Is(err, ErrNoPort) || errors.Is(err, errNoResources):
		c.crowded.Add(1)
	default:
		c.failed.Add(1)
	}
}

func flowOf(conn net.Conn, d Door) (Flow, error) {
	f := Flow{Protocol: v1.ProtocolTCP, Client: addrOf(conn.RemoteAddr()), Frontend: addrOf(conn.LocalAddr()), Origin: d.Origin}
	if d.Destination == nil {
		return f, nil
	}
	to, err := d.Destination(conn)
	f.Frontend = unmap(to)
	return f, err
}

func addrOf(a net.Addr) netip.AddrPort {
	if t, ok := a.(interface{ AddrPort() netip.AddrPort }); ok {
		return unmap(t.AddrPort())
	}
	return netip.AddrPort{}
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// carry connects a link to an endpoint and carries its data. The error says that
// it came to no connection.
func (e *Engine) carry(l *link, flow Flow) error {
	decision := e.decide(flow)
	if decision.action != proxy.Forward {
		var err error
		if decision, err = e.awaken(e.tasks.ctx, decision); err != nil {
			return err
		}
	}
	conn, endpoint, err := e.connect(e.tasks.ctx, &decision)
	if err != nil {
		return err
	}
	if !l.attach(conn, endpoint.Addr) {
		return nil // It was closed in the meantime.
	}
	l.touch(e.now())
	l.relaying.Store(true)
	if err := e.introduce(l, &decision); err != nil {
		return err
	}
	e.register(l, &decision)
	defer decision.service.unregister(l)
	e.relay(l)
	return nil
}

// serves reports whether an endpoint is still one of a port.
func (e *Engine) serves(d *decision, addr netip.AddrPort) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.has(d, addr)
}

// has is serves for callers that hold e.mu.
func (e *Engine) has(d *decision, addr netip.AddrPort) bool {
	p, ok := e.applied.Get(d.port.Name)
	return ok && (p == d.port || find(p.Cluster, addr) != nil || find(p.Local, addr) != nil || find(p.Draining, addr) != nil)
}

// introduce tells the endpoint who the client is, where it wants that.
func (e *Engine) introduce(l *link, d *decision) error {
	version := e.config.Hooks.ProxyProtocol
	if version == nil {
		return nil
	}
	header := proxyHeader(version(d.port.Name), d.flow.Client, d.flow.Frontend)
	if len(header) == 0 {
		return nil
	}
	_, err := l.upstream.Write(header)
	return err
}
