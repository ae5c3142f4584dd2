package conntrack

import (
	"context"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// Follow implements [proxy.FlowCleaner]. One Cleaner follows one Runner. Cleaning all
// frontends would miss the removed ones, so Follow cleans the changes first.
func (c *Cleaner) Follow(ctx context.Context, held proxy.Snapshot, full bool) error {
	c.everything = c.everything || full || c.mayRetry() || c.cleaned.IsZero()
	if !c.cleaned.IsZero() {
		changes := step{old: c.cleaned, new: held, swept: serviceCIDRs(c.cleaned), direct: !c.everything && c.retry.IsZero()}
		if err := c.clean(ctx, changes); err != nil {
			return err
		}
		c.cleaned = held
	}
	if c.everything {
		// The service ranges are swept once, for flows from before this process.
		if err := c.clean(ctx, step{new: held, swept: serviceCIDRs(c.cleaned)}); err != nil {
			return err
		}
	}
	c.cleaned, c.everything = held, false
	return nil
}

// Due implements [proxy.FlowCleaner]: it reports whether a removed endpoint has left
// the API, or flows that were offloaded may no longer be.
func (c *Cleaner) Due() bool {
	if c.mayRetry() {
		return true
	}
	for e := range c.removed {
		if !c.options.InAPI(e.port, e.addr) {
			return true
		}
	}
	return false
}

// mayRetry reports whether flows that were offloaded may no longer be.
func (c *Cleaner) mayRetry() bool { return !c.retry.IsZero() && !time.Now().Before(c.retry) }
