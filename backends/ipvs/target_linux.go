package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
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
	if err := r.Apply(ctx, proxy.Snapshot{}, proxy.NewSnapshot(node)); err != nil {
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

// Commit implements [backends.Target].
func (t *target) Commit(ctx context.Context, ops []op) backends.Outcome {
	c := commit{ops: atOnce(ops), failed: map[int]error{}}
	from, to := 0, len(ops)
	if o := &ops[0]; o.Key.kind == kindRules && o.Kind != backends.Remove { // nothing has a lower rank
		switch err := t.rules.write(ctx, o); {
		case err != nil && o.Kind == backends.Replace: // some may be written
			return backends.Outcome{Lost: err}
		case err != nil:
			for i := range ops { // without its rules no Service is served
				c.failed[i] = err
			}
			return backends.Outcome{Failed: c.failed}
		}
		from = 1
	} else if ops[to-1].Key.kind == kindRules { // removals go by falling rank
		to--
	}
	if err := t.carryOutParts(ctx, &c, from, to); err != nil {
		return backends.Outcome{Lost: err}
	}
	t.ops.Add(uint64(to - from - len(c.failed)))
	switch {
	case to == len(ops):
	case len(c.failed) > 0: // what stays needs the rules
		c.failed[to] = c.failed[slices.Min(slices.Collect(maps.Keys(c.failed)))]
	default:
		if err := t.rules.write(ctx, &ops[to]); err != nil { // some may be gone
			return backends.Outcome{Lost: err}
		}
	}
	return backends.Outcome{Failed: c.failed}
}

// carryOutParts carries out some operations part by part, and returns an error if the state is lost.
func (t *target) carryOutParts(ctx context.Context, c *commit, from, end int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for from < end {
		to := from + 1
		for to < end && partOf(&c.ops[to]) == partOf(&c.ops[from]) {
			to++
		}
		if err := t.carryOut(ctx, c, from, to); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// commit is the state of a Commit.
type commit struct {
	ops    []op
	failed map[int]error
	// at has the errors by frontend; an address counts as a frontend without a port. missing is the error
	// of an object that could not be made.
	at      map[frontend]error
	missing error
}

func (c *commit) fail(i int, err error) {
	c.failed[i] = err
	if c.at == nil {
		c.at = map[frontend]error{}
	}
	c.at[frontendOf(&c.ops[i].Key)] = err
	if c.ops[i].Kind != backends.Remove {
		c.missing = err
	}
}

// blocked returns why an operation is not tried. A frontend needs what has a lower rank, so that no packet gets in
// before everything exists that restricts or forwards it, or after any of that has gone. Nothing is removed after an
// object could not be made.
func (c *commit) blocked(i int) error {
	o := &c.ops[i]
	if o.Kind == backends.Remove && (c.missing != nil || o.Key.isAddress()) {
		return c.missing
	}
	f := frontendOf(&o.Key)
	if err := c.at[f]; err != nil {
		return err
	}
	f.protocol, f.addr = 0, netip.AddrPortFrom(f.addr.Addr(), 0)
	return c.at[f]
}

// carryOut carries out operations of one part, and returns an error if the state is lost.
func (t *target) carryOut(ctx context.Context, c *commit, from, to int) error {
	run, at := c.ops[from:to], []int(nil) // indexes in ops, unless they begin at from
	if len(c.failed) > 0 {
		run = nil
		for i := from; i < to; i++ {
			if err := c.blocked(i); err != nil {
				c.fail(i, err)
			} else {
				run, at = append(run, c.ops[i]), append(at, i)
			}
		}
	}
	if len(run) == 0 {
		return nil
	}
	var bad map[int]error
	var err error
	switch edgeOf(c.ops[from].Key.kind) {
	case edgeSets:
		bad, err = t.commitEntries(run)
	case edgeAddresses:
		bad = t.device.commit(ctx, run)
	case edgeServers:
		bad, err = t.commitServers(ctx, run)
	}
	for i, err := range bad {
		if errors.Is(err, proxy.ErrDataplaneLost) {
			return err
		}
		if i += from; at != nil {
			i = at[i-from]
		}
		c.fail(i, err)
	}
	return err
}

// atOnce returns operations of which those remove real servers at once that belong to a virtual
// server which gets a scheduler that lets none drain.
func atOnce(ops []op) []op {
	var servers map[key]bool
	for i := range ops {
		if o := &ops[i]; o.Kind != backends.Remove && endsDraining(o) {
			if servers == nil {
				servers = map[key]bool{}
			}
			servers[o.Key] = true
		}
	}
	if servers == nil {
		return ops
	}
	ops = slices.Clone(ops)
	for i := range ops {
		if o := &ops[i]; o.Kind == backends.Remove && o.Key.kind == kindDestination && servers[serverKey(&o.Key)] {
			o.Value.atOnce = true
		}
	}
	return ops
}

// edge is the part of the kernel that has an object.
type edge uint8

const (
	edgeSets edge = iota
	edgeAddresses
	edgeServers
)

func edgeOf(k kind) edge {
	if k == kindAddress {
		return edgeAddresses
	}
	if k == kindServer || k == kindDestination {
		return edgeServers
	}
	return edgeSets
}

// part is what one request of a Commit may have: operations on one part of the kernel. New virtual
// servers must exist before real servers are sent, because the kernel would add these to another program's
// virtual server. When a virtual server goes, its real servers go with it.
type part struct {
	edge      edge
	isRemoval bool
	isServer  bool
}

func partOf(o *op) part {
	s := part{edge: edgeOf(o.Key.kind), isRemoval: o.Kind == backends.Remove}
	s.isServer = !s.isRemoval && o.Key.kind == kindServer
	return s
}

// commitEntries changes entries of sets, and returns the errors of those that failed. The kernel carries out
// operations after one that fails.
func (t *target) commitEntries(run []op) (bad map[int]error, err error) {
	bad = map[int]error{}
	list, from := make([]ipvs.SetOp, 0, len(run)), make([]int, 0, len(run))
	for i := range run {
		k := &run[i].Key
		o := ipvs.SetOp{Set: t.names[ipaddr.FamilyOf(k.addr.Addr())].set(k.set), Delete: run[i].Kind == backends.Remove, Entry: entryOf(k)}
		if !o.Delete && k.set.isMarked() {
			if o.Entry.Mark, err = t.marks.take(k); err != nil {
				bad[i] = err
				continue
			}
		}
		list, from = append(list, o), append(from, i)
	}
	failed, err := t.sets.Do(list)
	if err != nil {
		return nil, lost(err)
	}
	for i := range failed {
		f := &failed[i]
		bad[from[f.Index]] = explain(f)
		t.releaseMark(&run[from[f.Index]], backends.Add)
	}
	for i := range run {
		if bad[i] == nil {
			t.releaseMark(&run[i], backends.Remove)
		}
	}
	return bad, nil
}

// releaseMark ends the use of the mark of an operation of a kind.
func (t *target) releaseMark(o *op, kind backends.OpKind) {
	if o.Kind == kind && o.Key.set == setMarks {
		t.marks.release(&o.Key)
	}
}

func entryOf(k *key) ipvs.Entry {
	return ipvs.Entry{Addr: k.addr.Addr(), Protocol: k.protocol, Port: k.addr.Port(), Net: k.source}
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
