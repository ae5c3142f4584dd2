package ipvs

import (
	"context"
	"errors"
	"fmt"
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
// servers and real servers. The kernel has no transactions of these: a Commit that fails
// reverts what it did.
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

// Operations implements [proxy.OperationCounter].
func (t *target) Operations() uint64 { return t.ops.Load() }

// Render is a [backends.Render].
func (t *target) Render(node *proxy.Node, port *proxy.ServicePort, out []object) []object {
	return t.renderer.render(node, port, out)
}

// Commit implements [backends.Target].
func (t *target) Commit(ctx context.Context, ops []op) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	done, err := t.commit(ctx, atOnce(ops))
	t.ops.Add(uint64(len(done)))
	if err == nil {
		return nil
	}
	undo := func(ctx context.Context, back []op) error {
		_, err := t.commit(ctx, back)
		return err
	}
	return backends.Undo(ctx, undo, done, err)
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

// commit carries out operations until one fails, and returns those that it has carried out.
func (t *target) commit(ctx context.Context, ops []op) (done []op, err error) {
	for i := 0; i < len(ops) && err == nil; {
		run := ops[i:]
		if end := slices.IndexFunc(run, func(o op) bool { return edgeOf(o.Key.kind) != edgeOf(run[0].Key.kind) }); end > 0 {
			run = run[:end]
		}
		var some []op
		switch edgeOf(run[0].Key.kind) {
		case edgeSets:
			some, err = t.commitEntries(run)
		case edgeAddresses:
			some, err = t.device.commit(ctx, run)
		case edgeServers:
			some, err = t.commitServers(ctx, run)
		}
		if i += len(run); err != nil || len(done) > 0 {
			done = append(slices.Clip(done), some...) // a copy, as it may be the beginning of ops
		} else {
			done = some // usually all of ops
		}
	}
	return done, err
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

// commitEntries changes entries of sets. The kernel carries out operations after one that
// fails.
func (t *target) commitEntries(run []op) (done []op, err error) {
	list := make([]ipvs.SetOp, 0, len(run))
	for i := range run {
		k := &run[i].Key
		o := ipvs.SetOp{Set: t.names[ipaddr.FamilyOf(k.addr.Addr())].set(k.set), Delete: run[i].Kind == backends.Remove, Entry: entryOf(k)}
		if !o.Delete && k.set.isMarked() {
			if o.Entry.Mark, err = t.marks.take(k); err != nil {
				t.releaseMarks(run[:i], backends.Add)
				return nil, err
			}
		}
		list = append(list, o)
	}
	failed, err := t.sets.Do(list)
	if err != nil {
		return nil, lost(err)
	}
	bad := make(map[int]bool, len(failed))
	for _, f := range failed {
		bad[f.Index] = true
		t.releaseMarks(run[f.Index:f.Index+1], backends.Add)
	}
	done = without(run, bad)
	t.releaseMarks(done, backends.Remove)
	if len(failed) == 0 {
		return done, nil
	}
	return done, explain(&failed[0])
}

// releaseMarks ends the use of the marks of operations of one kind.
func (t *target) releaseMarks(run []op, kind backends.OpKind) {
	for i := range run {
		if o := &run[i]; o.Kind == kind && o.Key.set == setMarks {
			t.marks.release(&o.Key)
		}
	}
}

func entryOf(k *key) ipvs.Entry {
	return ipvs.Entry{Addr: k.addr.Addr(), Protocol: k.protocol, Port: k.addr.Port(), Net: k.source}
}

// without returns the operations whose indexes are not bad.
func without(run []op, bad map[int]bool) []op {
	if len(bad) == 0 {
		return run
	}
	var rest []op
	for i := range run {
		if !bad[i] {
			rest = append(rest, run[i])
		}
	}
	return rest
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
