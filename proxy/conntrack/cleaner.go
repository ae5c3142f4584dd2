package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// TCPPolicy says what becomes of TCP flows to endpoints that left the API.
type TCPPolicy uint8

// The policies.
const (
	// KeepTCP leaves them alone.
	KeepTCP TCPPolicy = iota
	// DropHalfOpenTCP removes those that have not been established: the
	// client's next attempt goes to another endpoint.
	DropHalfOpenTCP
	// ResetTCP removes all of them. What the client sends next comes to another
	// endpoint, which does not know the connection and resets it, or is
	// rejected.
	ResetTCP
)

// Options say what a Cleaner does. The zero value is usable.
type Options struct {
	// TCP is the policy for TCP; with another one than [KeepTCP], InAPI is
	// required.
	TCP TCPPolicy
	// InAPI reports whether an endpoint that has left the pools of a service
	// port still is in the API, for example because it terminates. It is called
	// during Clean.
	InAPI func(proxy.ServicePortName, netip.AddrPort) bool
	// Observe, if not nil, is called after each Clean that had something to look
	// at, on the same goroutine.
	Observe func(Account)
}

// Account is what one Clean did.
type Account struct {
	// Frontends is the number of frontends whose flows were looked for.
	Frontends int
	// Dumps is the number of times that the kernel walked its table, Flows the
	// number of flows that it handed over, Removed that of those removed.
	Dumps, Flows, Removed int
	Duration              time.Duration
	// Err is nil, or what Clean returned.
	Err error
}

// Cleaner removes stale flows from the connection tracking table of one network
// namespace. Its calls must not overlap.
type Cleaner struct {
	options Options
	table   table
	// spared are endpoints whose TCP flows go when they leave the API.
	spared map[sparedEndpoint][]netip.AddrPort
}

// New opens the table of the network namespace of the calling thread; the Cleaner
// stays with it. It needs CAP_NET_ADMIN there. On other systems than Linux the
// error is [proxy.ErrUnsupported].
func New(options Options) (*Cleaner, error) {
	if options.TCP != KeepTCP && options.InAPI == nil {
		return nil, errors.New("conntrack: a policy for TCP needs InAPI")
	}
	t, err := openTable()
	if err != nil {
		return nil, fmt.Errorf("conntrack: open: %w", err)
	}
	return newCleaner(options, t), nil
}

func newCleaner(options Options, t table) *Cleaner {
	return &Cleaner{options: options, table: t, spared: map[sparedEndpoint][]netip.AddrPort{}}
}

// Close gives up what New opened.
func (c *Cleaner) Close() error { return c.table.close() }

// Clean removes the flows that were right under old, which has been cleaned
// before, and are stale under new, which the dataplane holds by now. With the zero
// old nothing is taken for granted. After an error some stale flows may be left;
// the same call removes them.
func (c *Cleaner) Clean(ctx context.Context, old, new proxy.Snapshot) error {
	p := c.plan(old, new)
	if p.empty() {
		c.forget(new)
		return nil
	}
	account := Account{Frontends: len(p.targets)}
	start := time.Now()
	err := c.clean(ctx, p, new, &account)
	if err != nil {
		err = fmt.Errorf("conntrack: %w", err)
	} else {
		c.forget(new)
	}
	account.Duration, account.Err = time.Since(start), err
	if c.options.Observe != nil {
		c.options.Observe(account)
	}
	return err
}

func (c *Cleaner) clean(ctx context.Context, p *plan, new proxy.Snapshot, account *Account) error {
	if err := p.resolveNodePorts(c.table, new); err != nil {
		return err
	}
	untranslated := false
	for _, f := range p.filters() {
		err := c.sweep(ctx, f, account, func(fl flow) bool {
			isStale := p.isStale(fl)
			untranslated = untranslated || isStale && !fl.translated()
			return isStale
		})
		if err != nil {
			return err
		}
	}
	return c.cleanAnswers(ctx, p, account, untranslated)
}

const (
	// underWay is how long answers to what has gone out are waited for.
	underWay = 20 * time.Millisecond
	// maxPasses bounds how often they are looked for.
	maxPasses = 8
)

// cleanAnswers removes flows that begin with an answer. Tracking may begin, or a
// flow be removed, between a packet and the answer of who served the address
// before. To the kernel the answer is then a new flow, from the address, to which all
// further packets of the client belong: nobody else would ever get them. Where
// there was such traffic, answers may be under way, so they are looked for until
// there are none.
func (c *Cleaner) cleanAnswers(ctx context.Context, p *plan, account *Account, expected bool) error {
	filters := p.answerFilters()
	for range maxPasses {
		if expected {
			if err := wait(ctx, underWay); err != nil {
				return err
			}
		}
		before := account.Removed
		for _, f := range filters {
			if err := c.sweep(ctx, f, account, p.isStaleAnswer); err != nil {
				return err
			}
		}
		if expected = account.Removed > before; !expected {
			return nil
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// sweep removes the stale flows behind a filter.
func (c *Cleaner) sweep(ctx context.Context, f filter, account *Account, isStale func(flow) bool) error {
	stale, err := c.find(ctx, f, account, isStale)
	for _, s := range stale {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.table.remove(s); err != nil {
			return fmt.Errorf("remove flow %v to %v: %w", s.source, s.dest, err)
		}
		account.Removed++
	}
	return err
}

// maxDumps bounds how often a dump that was interrupted by changes of the table's
// layout is repeated.
const maxDumps = 5

// find gives the stale flows behind a filter; with an error, those it has seen.
func (c *Cleaner) find(ctx context.Context, f filter, account *Account, isStale func(flow) bool) (stale []flow, err error) {
	for range maxDumps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		account.Dumps++
		stale = stale[:0]
		err = c.table.dump(f, func(fl flow) {
			account.Flows++
			if isStale(fl) {
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
