package addresses

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// load is present. It also reads the file, once, and forgets addresses that the host does not have: they are not the
// backend's any more. Of a damaged file nothing is believed: an address may be another program's.
func (c *Capture) load(ctx context.Context) (map[netip.Addr]bool, error) {
	present, err := c.present(ctx)
	if err != nil {
		return nil, err
	}
	whole := true
	if !c.loaded {
		if whole, err = c.own.Load(); err != nil {
			return nil, fmt.Errorf("reading which addresses were added: %w", err)
		}
		c.loaded = true
	}
	for text := range c.own.All() {
		if a, err := netip.ParseAddr(text); err != nil || !whole || !present[a] {
			c.own.Remove(text)
			c.refused.Delete(Key{addr: a})
		}
	}
	return present, nil
}

// added yields the backend's own addresses.
func (c *Capture) added(yield func(netip.Addr) bool) {
	for text := range c.own.All() {
		if a, err := netip.ParseAddr(text); err == nil && !yield(a) {
			return
		}
	}
}

// flush writes to the file what has changed.
func (c *Capture) flush() error {
	err := os.MkdirAll(filepath.Dir(c.State), 0o755)
	if err == nil {
		err = c.own.Flush()
	}
	if err != nil {
		return fmt.Errorf("recording which addresses are added: %w", err)
	}
	return nil
}
