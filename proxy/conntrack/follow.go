package conntrack

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// RemoveStale implements [proxy.FlowCleaner]. One Cleaner follows one Runner. Cleaning all
// frontends would miss the removed ones, so RemoveStale cleans the changes first.
func (c *Cleaner) RemoveStale(ctx context.Context, applied proxy.Snapshot, full bool) error {
	retried := c.startLook()
	c.everything = c.everything || full || retried || c.cleaned.IsZero()
	if !c.cleaned.IsZero() {
		changes := step{old: c.cleaned, new: applied, swept: serviceCIDRs(c.cleaned)}
		if err := c.clean(ctx, changes); err != nil {
			return err
		}
		c.cleaned = applied
	}
	if c.everything {
		// The service ranges are swept once, for flows from before this process.
		if err := c.clean(ctx, step{old: c.former(applied), new: applied, swept: serviceCIDRs(c.cleaned), again: !c.cleaned.IsZero(), retried: retried}); err != nil {
			return err
		}
		c.found = nil
	}
	c.cleaned, c.everything = applied, false
	return nil
}

// AddFrontends implements [proxy.FlowCleaner]. The next RemoveStale that cleans all frontends also removes flows to
// the frontends that no Service has any more.
func (c *Cleaner) AddFrontends(found []*proxy.ServicePort) {
	for _, p := range found {
		for _, at := range keys(p) {
			if c.found == nil {
				c.found = set[frontendKey]{}
			}
			c.found[at] = struct{}{}
		}
	}
}

// former returns the frontends of an earlier process, as if it had been for the same node. Without anything it is the zero
// Snapshot: either way, all frontends of applied are new.
func (c *Cleaner) former(applied proxy.Snapshot) proxy.Snapshot {
	if len(c.found) == 0 || applied.IsZero() {
		return proxy.Snapshot{}
	}
	udp, sctp := &proxy.ServicePort{Name: proxy.ServicePortName{Protocol: v1.ProtocolUDP}}, &proxy.ServicePort{Name: proxy.ServicePortName{Protocol: v1.ProtocolSCTP}}
	for at := range c.found {
		p := udp
		if at.proto == protoSCTP {
			p = sctp
		}
		p.Frontends = append(p.Frontends, proxy.Frontend{Addr: at.addr})
	}
	return proxy.NewSnapshot(applied.Node(), udp, sctp)
}

// RetryDue implements [proxy.FlowCleaner]: it reports whether flows that were offloaded may no longer be, or late replies
// may have made stale flows.
func (c *Cleaner) RetryDue() bool { return !c.retry.IsZero() && !time.Now().Before(c.retry) }
