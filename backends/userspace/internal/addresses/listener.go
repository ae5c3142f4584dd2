package addresses

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/internal/pause"
)

// open opens the listeners that operations add. After an error it has opened none.
func (c *Capture) openAll(ctx context.Context, ops []op, present map[netip.Addr]bool) error {
	var opened []Key
	end := time.Now().Add(c.Usable)
	for i := range ops {
		o := &ops[i]
		if o.Key.isAddress() || o.Kind != backends.Add {
			continue
		}
		// The node may lack one of its addresses, but not one that was added for Services.
		if !present[o.Key.addr] && !c.needed[o.Key.addr] {
			c.listeners[o.Key] = nil
			opened = append(opened, o.Key)
			continue
		}
		err := c.listenInTime(ctx, o.Key, end)
		if err != nil && isTaken(err) && !c.isOfService(ops, o.Key.addr) {
			c.listeners[o.Key] = nil
			c.taken.put(o.Key, explain(o.Key, err))
			err = nil
		}
		if err != nil {
			c.refused[o.Key.addr] = true
			for _, k := range opened {
				c.unlisten(k)
			}
			return explain(o.Key, err)
		}
		opened = append(opened, o.Key)
	}
	return nil
}

// isOfService reports whether an address is that of a Service, also of one that operations add. All
// others are for node ports.
func (c *Capture) isOfService(ops []op, a netip.Addr) bool {
	return c.needed[a] || slices.ContainsFunc(ops, func(o op) bool { return o.Kind == backends.Add && o.Key == Key{addr: a} })
}

// explain adds what an error of a listener means.
func explain(k Key, err error) error {
	err = fmt.Errorf("listening at %v/%s: %w", k.at(), k.protocol, err)
	switch cause := neterr.Of(err); {
	case neterr.IsDenied(err):
		return fmt.Errorf("the system denies that, as at ports that it reserves: %w", err)
	case cause == neterr.Shortage:
		return fmt.Errorf("%w: %w", backends.ErrExhausted, err)
	case cause == neterr.InUse:
		return fmt.Errorf("another program of the node listens there: %w", err)
	default:
		return err
	}
}

// listenInTime opens the socket of a frontend, and has the engine serve it. An address that was just
// added may need some time until the system has found that no other host uses it.
func (c *Capture) listenInTime(ctx context.Context, k Key, end time.Time) error {
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, time.Second/2) {
		err := c.listen(ctx, k)
		if err == nil {
			return nil
		}
		if neterr.Of(err) != neterr.NotLocal || time.Now().After(end) {
			return err
		}
		if err := pause.For(ctx, delay); err != nil {
			return err
		}
	}
}

// originOf returns the origin of a client. Only the node itself can have the address of a
// listener, and the system prefers it as the source of connections to it.
func originOf(k Key, client netip.Addr) engine.Origin {
	if client == k.addr {
		return engine.Node
	}
	return engine.ByAddress
}

// unlisten closes a listener, and forgets it. Its connections stay open.
func (c *Capture) unlisten(k Key) {
	c.sockets.unlisten(k)
	c.taken.drop(k)
}

// isOthers reports whether an error says that another program has added an address.
func isOthers(err error) bool { return errors.Is(err, fs.ErrExist) }
