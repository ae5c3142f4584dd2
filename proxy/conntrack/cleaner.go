package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/pause"
	"github.com/vipkit/vipkit/proxy"
)

// Options configure a Cleaner. The zero value is usable.
type Options struct {
	// Foreign reports whether an address in the service ranges that no frontend
	// has may be another program's, for example of a Service that names another
	// proxy. Clean calls it for service ranges that are new to it: translated flows to
	// addresses there that are not foreign became stale while no process was running, and are
	// removed. If nil, all addresses are foreign.
	Foreign func(netip.Addr) bool
	// Observe, if not nil, is called in each Clean for each IP family that had something to
	// clean, on the same goroutine.
	Observe func(Account)
}

// Account is what one Clean did in one IP family.
type Account struct {
	// Family is the IP family.
	Family v1.IPFamily
	// Frontends is the number of frontends whose flows were looked for.
	Frontends int
	// Dumps is how often the kernel walked its table, Flows the number of flows that it returned,
	// Removed that of those removed.
	Dumps, Flows, Removed int
	// Offloaded is the number of stale flows that the kernel does not remove, since another
	// program has offloaded them to a flowtable of nf_tables.
	Offloaded int
	// Duration is how long the Clean took for this family, with all waiting.
	Duration time.Duration
	// Err is nil, or the part of this family in the error of Clean.
	Err error
}

// Cleaner removes stale flows from the connection tracking table of one network
// namespace. Its calls must not overlap.
type Cleaner struct {
	options Options
	table   table
	// retry is when to look again for flows that were offloaded, and for late replies; zero for never. until is the
	// last time for which a look was wanted; looks counts the looks in a row that found late replies.
	retry, until time.Time
	looks        int
	// cleaned is the last snapshot to which RemoveStale has cleaned the changes.
	cleaned proxy.Snapshot
	// found are frontends that an earlier process has left, to be cleaned with everything.
	found set[frontendKey]
	// everything says that the next RemoveStale must clean all frontends.
	everything bool
}

// New opens the table of the network namespace of the calling thread, which needs CAP_NET_ADMIN
// there. Where connection tracking is a module of the kernel, New loads it. On other
// systems than Linux, and on kernels without it, the error is [proxy.ErrUnsupported].
func New(options Options) (*Cleaner, error) {
	t, err := openTable()
	if err != nil {
		return nil, fmt.Errorf("conntrack: open: %w", err)
	}
	return newCleaner(options, t), nil
}

func newCleaner(options Options, t table) *Cleaner { return &Cleaner{options: options, table: t} }

// Close closes the table. The Cleaner must not be used after it.
func (c *Cleaner) Close() error { return c.table.close() }

// Clean removes the flows that were right under old, which has been cleaned
// before, and are stale under new, which the dataplane holds now. With the zero
// old all frontends are new. If a flow cannot be removed, Clean goes on with the
// others. After an error, which may be that of ctx, some stale flows may be left;
// the same call removes them. Offloaded flows are no error: [Account] counts them.
// When RetryDue reports so, Clean from the zero Snapshot looks for what is left.
func (c *Cleaner) Clean(ctx context.Context, old, new proxy.Snapshot) error {
	return c.clean(ctx, step{old: old, new: new, swept: serviceCIDRs(old), retried: old.IsZero() && c.startLook()})
}

// step is what one Clean follows.
type step struct {
	old, new proxy.Snapshot
	// swept are the service ranges whose flows have been cleaned before.
	swept []netip.Prefix
	// again says that this process has cleaned before.
	again bool
	// retried says that a Clean before has removed the untranslated flows, and this one looks for late replies.
	retried bool
}

func (c *Cleaner) clean(ctx context.Context, s step) error {
	p, err := c.plan(s)
	if err == nil {
		err = c.execute(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	return nil
}

func (c *Cleaner) execute(ctx context.Context, p *plan) error {
	var errs []error
	offloaded := false
	for _, family := range ipaddr.Families() {
		protocols, frontends := p.wanted(family)
		if len(protocols) == 0 {
			continue
		}
		account := Account{Family: family, Frontends: frontends}
		start := time.Now()
		err := c.cleanFamily(ctx, p, protocols, &account)
		account.Duration, account.Err = time.Since(start), err
		offloaded = offloaded || account.Offloaded > 0
		if c.options.Observe != nil {
			c.options.Observe(account)
		}
		errs = append(errs, err)
		if err != nil && ctx.Err() != nil {
			break // The other family would return the same error.
		}
	}
	c.lookAgain(p, offloaded)
	return errors.Join(errs...)
}

// lookAgain decides whether and when to look once more. While each look finds late replies, the time doubles:
// whoever can send from the address of a frontend must not make the Cleaner dump all flows all the time.
func (c *Cleaner) lookAgain(p *plan, offloaded bool) {
	switch {
	case p.retried && p.late:
		c.looks = min(c.looks+1, maxDoubled)
	case p.retried:
		c.looks = 0
	}
	if !offloaded && !p.late {
		return
	}
	wait := retryTime
	if p.retried && !offloaded {
		wait <<= c.looks
	}
	next := time.Now().Add(wait)
	if next.After(c.until) {
		c.until = next
	}
	if c.retry.IsZero() || next.Before(c.retry) { // a pending look stays, else changes in a row would put it off for ever
		c.retry = next
	}
}

// startLook reports whether it is time to look again. The next look is then for flows that were removed meanwhile.
func (c *Cleaner) startLook() bool {
	if !c.RetryDue() {
		return false
	}
	c.retry = time.Time{}
	if time.Now().Before(c.until) {
		c.retry = c.until
	}
	return true
}

const (
	// underWay is how long Clean waits for replies to packets that were sent before. Later ones are for a
	// RemoveStale after retryTime.
	underWay = 20 * time.Millisecond
	// maxPasses bounds how often Clean dumps a protocol.
	maxPasses = 8
)

// cleanFamily removes the stale flows of one family. If a pass has removed untranslated flows
// of a protocol, further replies of the program that served the frontends before may be under
// way ([plan.isStaleReply]), so it repeats until it finds none.
func (c *Cleaner) cleanFamily(ctx context.Context, p *plan, protocols []protocol, account *Account) error {
	var errs []error
	for pass := range maxPasses {
		if pass > 0 && pause.For(ctx, underWay) != nil {
			break
		}
		protocols = slices.DeleteFunc(protocols, func(proto protocol) bool {
			again, err := c.sweep(ctx, p, filter{account.Family, proto}, account)
			errs = append(errs, err)
			return !again
		})
		if len(protocols) == 0 {
			break
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

const (
	// retryTime is after how long the Cleaner looks again. A UDP flow is offloaded for as long after its last
	// packet, by default; most programs have answered by then.
	retryTime = 30 * time.Second
	// maxDoubled bounds how often retryTime doubles: to 32 minutes.
	maxDoubled = 6
)

// maxNamed bounds the flows that an error names.
const maxNamed = 10

// sweep removes the stale flows that a filter selects, and reports whether it has removed any
// that may have replies under way. When the context ends it stops without an error.
func (c *Cleaner) sweep(ctx context.Context, p *plan, f filter, account *Account) (again bool, err error) {
	stale, err := c.find(ctx, f, account, func(fl flow) bool { return p.isStale(fl) || p.isStaleReply(fl) })
	errs, left := []error{err}, 0
	for _, s := range stale {
		if ctx.Err() != nil {
			break
		}
		err := c.table.remove(s)
		switch {
		case err == nil:
			account.Removed++
			if !s.translated() {
				again = true
				p.late = p.late || !p.retried || p.isStaleReply(s)
			}
		case errors.Is(err, errOffloaded):
			account.Offloaded++
		default:
			if left++; left <= maxNamed {
				errs = append(errs, fmt.Errorf("remove flow %v to %v: %w", s.source, s.dest, err))
			}
		}
	}
	if left > maxNamed {
		errs = append(errs, fmt.Errorf("and %d more flows", left-maxNamed))
	}
	return again, errors.Join(errs...)
}

// maxDumps bounds how often a dump that was interrupted by changes of the table's
// layout is repeated.
const maxDumps = 5

// find returns the stale flows that a filter selects; with an error, those that it has found
// until then.
func (c *Cleaner) find(ctx context.Context, f filter, account *Account, isStale func(flow) bool) (stale []flow, err error) {
	for range maxDumps {
		if ctx.Err() != nil {
			break
		}
		account.Dumps++
		stale = stale[:0]
		err = c.table.dump(f, func(fl flow) {
			account.Flows++
			if fl.proto == f.proto && isStale(fl) {
				stale = append(stale, fl)
			}
		})
		if !errors.Is(err, errInterrupted) {
			break
		}
	}
	if err != nil {
		return stale, fmt.Errorf("dump %v: %w", f, err)
	}
	return stale, nil
}
