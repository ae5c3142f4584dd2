package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/pause"
	"github.com/vipkit/vipkit/proxy"
)

// TCPPolicy says what becomes of TCP flows to endpoints that left the API. With
// another policy than [KeepTCP], flows that have not been established go as well if
// they began before their frontend was there: the kernel never translates them, so a
// client that tries again and again from one port would never get through.
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
	// Foreign reports whether an address in the service ranges that no frontend
	// has may be another program's, for example of a Service that names another
	// proxy. It is called during Clean, when ranges are looked at that were not
	// known before: translated flows to addresses in them that are not foreign
	// are what went stale while no process was running, and are removed. Nil
	// takes all addresses for foreign.
	Foreign func(netip.Addr) bool
	// Observe, if not nil, is called in each Clean for each IP family that there
	// was something to look at in, on the same goroutine.
	Observe func(Account)
}

// Account is what one Clean did in one IP family.
type Account struct {
	// Family is the one that all else is about.
	Family v1.IPFamily
	// Frontends is the number of frontends whose flows were looked for.
	Frontends int
	// Dumps is the number of times that the kernel walked its table, Flows the
	// number of flows that it handed over, Removed that of those removed.
	Dumps, Flows, Removed int
	// Offloaded is the number of flows that should go and cannot yet, since another
	// program has led them past the rules, by a flowtable of nf_tables.
	Offloaded int
	// Duration is how long that took, with all waiting.
	Duration time.Duration
	// Err is nil, or what Clean returns of this family.
	Err error
}

// Cleaner removes stale flows from the connection tracking table of one network
// namespace. Its calls must not overlap.
type Cleaner struct {
	options Options
	table   table
	// spared are endpoints whose TCP flows go when they leave the API.
	spared map[sparedEndpoint][]netip.AddrPort
	// retry is when to look again for flows that were offloaded; zero for never.
	retry time.Time
}

// New opens the table of the network namespace of the calling thread; the Cleaner
// stays with it. It needs CAP_NET_ADMIN there. Where connection tracking is a module of
// the kernel, it is loaded from now on, and its parameters are in /proc/sys. On other
// systems than Linux, and on kernels without it, the error is [proxy.ErrUnsupported].
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

// Close gives up what New opened. The Cleaner cannot be used any more.
func (c *Cleaner) Close() error { return c.table.close() }

// Clean removes the flows that were right under old, which has been cleaned
// before, and are stale under new, which the dataplane holds by now. With the zero
// old nothing is taken for granted. A flow that cannot be removed does not keep the
// others from it. After an error, which may be that of ctx, some stale flows may be left;
// the same call removes them. That a flow is offloaded is no error, as that may last:
// [Account] has how many are.
func (c *Cleaner) Clean(ctx context.Context, old, new proxy.Snapshot) error {
	return c.clean(ctx, old, new, serviceCIDRs(old))
}

// clean is Clean where the ranges that have been looked at need not be those of old.
func (c *Cleaner) clean(ctx context.Context, old, new proxy.Snapshot, swept []netip.Prefix) error {
	if old.IsZero() {
		c.retry = time.Time{}
	}
	p := c.plan(old, new, swept)
	if err := c.execute(ctx, p, new); err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	c.forget(p, new)
	return nil
}

func (c *Cleaner) execute(ctx context.Context, p *plan, new proxy.Snapshot) error {
	if err := p.resolveNodePorts(c.table, new); err != nil {
		return err
	}
	var errs []error
	for _, family := range [...]v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		filters := p.filters(family)
		if len(filters) == 0 {
			continue
		}
		account := Account{Family: family, Frontends: p.frontends(family)}
		start := time.Now()
		err := c.cleanFamily(ctx, p, filters, &account)
		account.Duration, account.Err = time.Since(start), err
		if account.Offloaded > 0 {
			c.retry = time.Now().Add(offloadTime)
		}
		if c.options.Observe != nil {
			c.options.Observe(account)
		}
		errs = append(errs, err)
		if err != nil && ctx.Err() != nil {
			break // The other family would only say the same.
		}
	}
	return errors.Join(errs...)
}

func (c *Cleaner) cleanFamily(ctx context.Context, p *plan, filters []filter, account *Account) error {
	untranslated := false
	err := c.sweepAll(ctx, filters, account, func(fl flow) bool {
		isStale := p.isStale(fl)
		untranslated = untranslated || isStale && !fl.translated()
		return isStale
	})
	if err != nil && ctx.Err() != nil {
		return err
	}
	return errors.Join(err, c.cleanAnswers(ctx, p, account, untranslated))
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
	filters := p.answerFilters(account.Family)
	for range maxPasses {
		if expected {
			if err := pause.For(ctx, underWay); err != nil {
				return err
			}
		}
		before := account.Removed
		if err := c.sweepAll(ctx, filters, account, p.isStaleAnswer); err != nil {
			return err
		}
		if expected = account.Removed > before; !expected {
			return nil
		}
	}
	return nil
}

// offloadTime is how long a flow of UDP is offloaded after its last packet, unless
// somebody has set another time.
const offloadTime = 30 * time.Second

// maxNamed is how many flows that could not be removed an error names.
const maxNamed = 10

// sweepAll removes the stale flows behind filters. Where the context has ended it says so,
// once, however far it came.
func (c *Cleaner) sweepAll(ctx context.Context, filters []filter, account *Account, isStale func(flow) bool) error {
	var errs []error
	for _, f := range filters {
		if ctx.Err() != nil {
			break
		}
		errs = append(errs, c.sweep(ctx, f, account, isStale))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// sweep removes the stale flows behind a filter. It stops when the context ends, and leaves it
// to the caller to say so.
func (c *Cleaner) sweep(ctx context.Context, f filter, account *Account, isStale func(flow) bool) error {
	stale, err := c.find(ctx, f, account, isStale)
	errs, left := []error{err}, 0
	for _, s := range stale {
		if ctx.Err() != nil {
			break
		}
		err := c.table.remove(s)
		switch {
		case err == nil:
			account.Removed++
		case errors.Is(err, errOffloaded):
			account.Offloaded++
		case left < maxNamed:
			errs = append(errs, fmt.Errorf("remove flow %v to %v: %w", s.source, s.dest, err))
			fallthrough
		default:
			left++
		}
	}
	if left > maxNamed {
		errs = append(errs, fmt.Errorf("and %d flows more", left-maxNamed))
	}
	return errors.Join(errs...)
}

// maxDumps bounds how often a dump that was interrupted by changes of the table's
// layout is repeated.
const maxDumps = 5

// find gives the stale flows behind a filter; with an error, those it has seen.
func (c *Cleaner) find(ctx context.Context, f filter, account *Account, isStale func(flow) bool) (stale []flow, err error) {
	for range maxDumps {
		if ctx.Err() != nil {
			break
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
