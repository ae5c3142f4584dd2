package addresses

import (
	"context"
	"fmt"

	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/proxy"
)

// open opens the listener of a frontend. The node may lack one of its own addresses, and another program may have a
// node port: then there is none.
func (w *writer) open(ctx context.Context, k Key) error {
	isOfService := w.needed[k.addr]
	if !w.present[k.addr] && !isOfService {
		w.listeners[k] = nil
		return nil
	}
	// An address that was just added may need some time until the system has found that no other host uses it.
	err := host.Retry(ctx, neterr.NotLocal, w.end, func() error { return w.listen(ctx, k) })
	if err == nil {
		return nil
	}
	err = explain(k, err)
	if !isTaken(err) || isOfService {
		return err
	}
	w.listeners[k] = nil
	w.refused.Store(k, err)
	return nil
}

// explain adds what an error of a listener means.
func explain(k Key, err error) error {
	err = fmt.Errorf("listening at %v/%s: %w", k.at(), k.protocol, err)
	switch cause := neterr.Of(err); {
	case neterr.IsDenied(err):
		return fmt.Errorf("the system denies that, as at ports that it reserves: %w", err)
	case cause == neterr.InUse:
		return fmt.Errorf("another program of the node listens there: %w", err)
	default:
		return err
	}
}

// unlisten closes a listener, and forgets it. Its connections stay open.
func (c *Capture) unlisten(k Key) {
	c.sockets.unlisten(k)
	c.refused.Delete(k)
}

// isTaken reports whether an error of a listener is about its address and port alone.
func isTaken(err error) bool { return neterr.Of(err) == neterr.InUse || neterr.IsDenied(err) }

func (c *Capture) isRefused(k Key) bool {
	_, is := c.refused.Load(k)
	return is
}

// canListen reports whether a node port that was taken is free now.
func (c *Capture) canListen(ctx context.Context, k Key) bool {
	socket, err := c.bind(ctx, k)
	return err == nil && socket.Close() == nil
}

// CheckNode is CheckNode of [proxy.Abilities]: it returns the node ports that are taken, and the
// addresses that cannot be removed. Both are tried again at each resync.
func (c *Capture) CheckNode(s proxy.Snapshot) (all []*proxy.Problem) {
	for x, refused := range c.refused.Range {
		k, _ := x.(Key)
		err, _ := refused.(error)
		p := &proxy.Problem{Kind: "Node", Field: fmt.Sprintf("node port %v/%s", k.at(), k.protocol), Reason: proxy.NodeSetting, Err: err}
		if k.isAddress() {
			p.Field = fmt.Sprintf("address %v", k.addr)
		}
		if n := s.Node(); n != nil {
			p.Name = n.Name
		}
		all = append(all, p)
	}
	return all
}
