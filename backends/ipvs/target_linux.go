package ipvs

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/nodecheck"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// target is the [backends.Target]: the constant rules, addresses of the dummy device, entries of sets, virtual
// servers and real servers. The kernel has no transactions of these.
type target struct {
	*renderer
	// maxEntries is the limit of entries of a set.
	maxEntries uint32
	rules      rules

	// mu guards what the goroutine that ends draining uses too, and what WaitDrift reads.
	mu sync.Mutex
	// exact are the facts of the last Apply, with what they follow from.
	exact  exactFrontends
	device device
	sets   *ipvs.Sets
	kernel *ipvs.Conn // has the virtual servers; nil in [Cleanup] while ip_vs is not loaded
	// marks are the packet marks of the virtual servers for marked packets.
	marks   marks
	drainer drainer
	// found are the frontends of the last listing.
	found backends.Finds

	ops atomic.Uint64
}

// rules writes the constant rules.
type rules struct {
	*xtables.Backend
	// written are the rules that the kernel has unless others change them; the zero Handle if they are unknown.
	written unique.Handle[string]
}

// write writes the rules of an operation in the place of all others. Programs read and write them, and they are
// few: all of them are written, or none.
func (r *rules) write(ctx context.Context, o *op) error {
	r.written = unique.Handle[string]{}
	node, _ := o.Payload.(*proxy.Node)
	switch err := r.Apply(ctx, proxy.Snapshot{}, proxy.NewSnapshot(node)); {
	case err != nil && o.Kind != backends.Add: // some may be written
		return lost(err)
	case err != nil:
		return err
	}
	if node != nil { // otherwise there are none now
		r.written = o.Value.rules
	}
	return nil
}

// Abilities implements [backends.Target]. IPVS keeps flows, as connection tracking does. IPVS and ipsets
// have no events and no generation, so only reading everything shows whether another program changed
// them: there is no Drifted.
func (t *target) Abilities() backends.TargetAbilities[key, value] {
	return backends.TargetAbilities[key, value]{
		Abilities: proxy.Abilities{
			Operations:     func() uint64 { return t.rules.Operations() + t.ops.Load() },
			WaitDrift:      t.WaitDrift,
			FoundFrontends: t.found.Take,
			CheckNode:      nodecheck.Translation,
			CheckLimits:    t.CheckLimits,
			CountTraffic:   t.CountTraffic,
		},
		Facts: t.Facts, Cleanup: t.Cleanup, Close: t.Close,
	}
}

// CheckLimits is CheckLimits of [proxy.Abilities].
func (t *target) CheckLimits(_ *proxy.Node, port *proxy.ServicePort) []*proxy.Problem {
	return t.limits(t.exact.schedulers, port)
}

// Commit implements [backends.Target]. It carries out together what has one rank, because many entries of a set fit
// into one request.
func (t *target) Commit(ctx context.Context, ops []op) backends.Outcome {
	c := newCommit(ops)
	for from, to := 0, 0; from < len(ops) && c.Lost == nil; from = to {
		isSame := func(o *op) bool {
			return o.Key.kind == ops[from].Key.kind && (o.Kind == backends.Remove) == (ops[from].Kind == backends.Remove)
		}
		for to = from + 1; to < len(ops) && isSame(&ops[to]); to++ {
		}
		t.carryOut(ctx, c, from, to)
	}
	return c.Outcome
}

// commit is the state of a Commit.
type commit struct {
	backends.Outcome
	ops []op
	// servers are the virtual servers that let none of their real servers drain: true if they go, and these with them,
	// false if they get a scheduler that refuses clients of draining ones.
	servers map[key]bool
	// at has the errors by frontend; an address counts as a frontend without a port. first is the first error, rules
	// the error of writing rules, and missing the error of an object that could not be made.
	at                    map[frontend]error
	first, rules, missing error
}

func newCommit(ops []op) *commit {
	c := &commit{ops: ops, servers: map[key]bool{}, at: map[frontend]error{}}
	for i := range ops {
		if o := &ops[i]; o.Key.kind == kindServer && (o.Kind == backends.Remove || refusesAtZero(o.Value.scheduler)) {
			c.servers[o.Key] = o.Kind == backends.Remove
		}
	}
	return c
}

// fail records that an operation has failed.
func (c *commit) fail(i int, err error) {
	if errors.Is(err, proxy.ErrDataplaneLost) {
		c.Outcome = backends.Outcome{Lost: err}
		return
	}
	if c.Failed == nil {
		c.Failed = map[int]error{}
	}
	o := &c.ops[i]
	c.Failed[i], c.at[frontendOf(&o.Key)], c.first = err, err, cmp.Or(c.first, err)
	switch {
	case o.Key.kind == kindRules:
		c.rules = err
	case o.Kind != backends.Remove:
		c.missing = err
	}
}

// blocked returns why an operation is not tried. A frontend needs what has a lower rank, so that no packet gets in
// before everything exists that restricts or forwards it, or after any of that has gone. Nothing is removed after an
// object could not be made. All frontends need the rules.
func (c *commit) blocked(o *op) error {
	switch {
	case c.rules != nil:
		return c.rules
	case o.Key.kind == kindRules:
		return c.first
	case o.Kind == backends.Remove && (c.missing != nil || o.Key.isAddress()):
		return c.missing
	}
	f := frontendOf(&o.Key)
	if err := c.at[f]; err != nil {
		return err
	}
	f.protocol, f.addr = 0, netip.AddrPortFrom(f.addr.Addr(), 0)
	return c.at[f]
}

// carryOut carries out operations of one rank.
func (t *target) carryOut(ctx context.Context, c *commit, from, to int) {
	if c.ops[from].Key.kind != kindRules { // programs write rules
		t.mu.Lock()
		defer t.mu.Unlock()
	}
	var entries []int
	for i := from; i < to && c.Lost == nil; i++ {
		o := &c.ops[i]
		err := cmp.Or(ctx.Err(), c.blocked(o))
		switch {
		case err != nil:
		case o.Key.kind == kindRules:
			err = t.rules.write(ctx, o)
		case o.Key.kind == kindAddress:
			err = t.device.change(o)
		case o.Key.kind == kindServer || o.Key.kind == kindDestination:
			err = t.changeServer(c, o)
		default:
			entries = append(entries, i)
			continue
		}
		if err != nil {
			c.fail(i, err)
		} else if o.Key.kind != kindRules {
			t.ops.Add(1)
		}
	}
	if len(entries) > 0 {
		t.changeEntries(c, entries)
	}
}

// changeEntries carries out some operations on entries of sets. The kernel carries out operations after one that fails.
func (t *target) changeEntries(c *commit, some []int) {
	list, indexes := make([]ipvs.SetOp, 0, len(some)), make([]int, 0, len(some))
	for _, i := range some {
		o, err := t.entry(&c.ops[i])
		if err != nil {
			c.fail(i, err)
			continue
		}
		list, indexes = append(list, o), append(indexes, i)
	}
	failed, err := t.sets.Do(list)
	if err != nil {
		c.fail(some[0], lost(err))
		return
	}
	for at, i := range indexes {
		o, err := &c.ops[i], failed[at]
		if err != nil {
			c.fail(i, explain(err))
		} else {
			t.ops.Add(1)
		}
		if unused := err != nil && o.Kind == backends.Add || err == nil && o.Kind == backends.Remove; unused && o.Key.set == setMarks {
			t.marks.release(&o.Key)
		}
	}
}

// entry returns the change of an entry. An added one may get a new mark.
func (t *target) entry(o *op) (change ipvs.SetOp, err error) {
	k := &o.Key
	change = ipvs.SetOp{
		Set: setName(t.prefix, ipaddr.FamilyOf(k.addr.Addr()), k.set), Delete: o.Kind == backends.Remove,
		Entry: ipvs.Entry{Addr: k.addr.Addr(), Protocol: k.protocol, Port: k.addr.Port(), Net: k.source},
	}
	if !change.Delete && k.set.isMarked() {
		change.Entry.Mark, err = t.marks.take(k)
	}
	return change, err
}

// Close is Close of [backends.TargetAbilities].
func (t *target) Close() error {
	t.mu.Lock()
	t.drainer.closed = true
	if t.drainer.stop != nil {
		t.drainer.stop()
	}
	t.mu.Unlock()
	t.drainer.running.Wait()
	var errs []error
	if t.kernel != nil {
		errs = append(errs, t.kernel.Close())
	}
	if t.sets != nil {
		errs = append(errs, t.sets.Close())
	}
	if t.rules.Backend != nil {
		errs = append(errs, t.rules.Close())
	}
	if t.device.at != nil {
		errs = append(errs, t.device.at.Close())
	}
	return errors.Join(errs...)
}
