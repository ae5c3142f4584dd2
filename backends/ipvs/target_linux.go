package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// target is the [backends.Target]: addresses of the dummy device, entries of sets, virtual
// servers and real servers. The kernel has no transactions of these.
type target struct {
	renderer *renderer
	names    map[v1.IPFamily]names
	tag      uint32 // in the flags of its virtual servers

	// mu guards what the goroutine that ends draining uses too, and what [backend.WaitDrift]
	// reads: the change of renderer.
	mu     sync.Mutex
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

// Abilities implements [backends.Target]. The backend has them.
func (*target) Abilities() (none backends.Abilities[key, value]) { return none }

// Render is a [backends.Render].
func (t *target) Render(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	return t.renderer.render(node, port, out)
}

// Commit implements [backends.Target].
func (t *target) Commit(ctx context.Context, ops []op) backends.Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := commit{ops: atOnce(ops), failed: map[int]error{}}
	for from := 0; from < len(ops); {
		to := from + 1
		for to < len(ops) && partOf(&ops[to]) == partOf(&ops[from]) {
			to++
		}
		if err := t.carryOut(ctx, &c, from, to); err != nil {
			return backends.Outcome{Lost: err}
		}
		from = to
	}
	t.ops.Add(uint64(len(ops) - len(c.failed)))
	return backends.Outcome{Failed: c.failed}
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

// findKernel fails with [ipvs.ErrMissing] if ip_vs is not loaded and cannot be.
func (t *target) findKernel() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kernel == nil {
		return ipvs.ErrMissing
	}
	_, err := t.kernel.Timeouts()
	return err
}

// cleanup removes the virtual servers of the backend. New connections are rejected before: without
// a server, those to addresses of Services would reach processes of the node.
func (t *target) cleanup(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() { t.drainer.of = draining{} }()
	if err := ctx.Err(); err != nil { // before the first flush, which would reject connections for nothing
		return fmt.Errorf("ipvs: %w", err)
	}
	l, err := t.list()
	if err != nil {
		return fmt.Errorf("ipvs: listing: %w", err)
	}
	if err := t.flushFrontends(); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	var list []ipvs.Op
	for i := range l.found {
		if k := &l.found[i].Key; k.kind == kindServer {
			list = append(list, ipvs.DelService(t.marks.server(k)))
		}
	}
	failed, err := t.kernel.Do(ctx, list)
	if err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	for i := range failed {
		if f := &failed[i]; !errors.Is(f, unix.ESRCH) { // another program removed it, or it was listed twice
			return explain(f)
		}
	}
	return nil
}

// flushFrontends empties the sets of frontends.
func (t *target) flushFrontends() error {
	for _, f := range t.renderer.families {
		for _, s := range frontendSets() {
			if err := t.sets.Flush(t.names[f].set(s)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *target) close() error {
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
	return errors.Join(errs...)
}
