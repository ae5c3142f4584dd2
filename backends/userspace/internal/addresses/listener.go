package addresses

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
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
	w.taken.put(k, err)
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
	c.taken.drop(k)
}

// isOthers reports whether an error says that another program has added an address.
func isOthers(err error) bool { return errors.Is(err, fs.ErrExist) }
