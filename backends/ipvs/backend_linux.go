package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/nodecheck"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/proxy"
)

// backend makes the device and the sets, which always exist, then the constant rules, which
// refer to the sets, and then what service ports need.
type backend struct {
	options   Options
	prefix    string // of sets and chains
	namespace *netns.NS
	rules     *xtables.Backend
	services  proxy.Backend
	target    *target
	// ruled is the node for which the rules have been applied, nil if they are unknown.
	ruled *proxy.Node
	// exact are the frontends at addresses of the node.
	exact *exactFrontends
	// changes are the settings that the backend has changed, as the alias of the device has them.
	changes changes
	// maxEntries is the limit of entries of a set.
	maxEntries uint32
	// probed says that the schedulers of the kernel are known.
	probed bool
	// cleaned says that Cleanup was called after the last Apply: also if it failed, nothing is known.
	cleaned bool
}

// Apply implements [proxy.Backend].
func (b *backend) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	if !b.cleaned {
		return b.apply(ctx, old, new)
	}
	err := b.apply(ctx, proxy.Snapshot{}, new)
	b.cleaned = proxy.Snapshot{}.Achieved(new, err).IsZero()
	if err != nil && !old.IsZero() {
		return lost(err) // nothing is as in old
	}
	return err
}

// apply does what Apply does.
func (b *backend) apply(ctx context.Context, old, new proxy.Snapshot) error {
	if old.IsZero() {
		if err := b.prepare(ctx); err != nil {
			return err
		}
	}
	hasRules := !old.IsZero() && old.Node().Equal(new.Node())
	if !hasRules {
		if err := b.applyRules(ctx, new); err != nil { // without its rules no Service is served
			if !old.IsZero() {
				err = fmt.Errorf("%w: rules for another node: %w", proxy.ErrDataplaneLost, err) // some may be written
			}
			return err
		}
	}
	switch isMoved := b.updateExact(new); {
	case hasRules && !isMoved:
		return b.services.Apply(ctx, old, new)
	case old.IsZero() || !isMoved:
		return backends.JoinErrors(!old.IsZero(), nil, b.services.Apply(ctx, old, new))
	}
	// Service ports that are the same get or lose addresses, which is rare.
	if err := b.services.Apply(ctx, proxy.Snapshot{}, new); err != nil {
		return lost(err)
	}
	return nil
}

// updateExact has new frontends at addresses of the node rendered, and reports whether node ports of
// other service ports must be rendered again.
func (b *backend) updateExact(snapshot proxy.Snapshot) (isMoved bool) {
	isOther, isMoved := b.exact.update(snapshot)
	if isOther {
		t := b.target
		r := *t.renderer
		r.exact = maps.Clone(b.exact.at)
		t.mu.Lock()
		t.renderer = &r
		t.mu.Unlock()
	}
	return isMoved
}

// applyRules applies the constant rules, unless they were applied for an equal node and nobody
// has changed rules since: reading and writing them starts programs.
func (b *backend) applyRules(ctx context.Context, new proxy.Snapshot) error {
	if b.ruled != nil && b.ruled.Equal(new.Node()) && !b.rules.Drifted(ctx) {
		return nil
	}
	b.ruled = nil
	if err := b.rules.Apply(ctx, proxy.Snapshot{}, new); err != nil {
		return err
	}
	b.ruled = new.Node()
	return nil
}

// prepare makes the objects that always exist, and writes the settings of the kernel.
func (b *backend) prepare(ctx context.Context) error {
	if err := b.makeObjects(ctx); err != nil {
		return err
	}
	if err := b.applySettings(b.wanted()); err != nil {
		return fmt.Errorf("ipvs: %w: %w", backends.ErrUnavailable, err)
	}
	return nil
}

// makeObjects makes the device and the sets, and reads the addresses of the node and which
// schedulers the kernel has.
func (b *backend) makeObjects(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t := b.target
	if err := b.checkTag(); err != nil {
		return err
	}
	if err := b.makeDeviceAndSets(); err != nil {
		return err
	}
	t.mu.Lock()
	_, host, err := t.device.addresses()
	t.mu.Unlock()
	if err != nil {
		return fmt.Errorf("ipvs: %w: addresses of the node: %w", backends.ErrUnavailable, err)
	}
	r := *t.renderer
	r.host, r.exact = host, nil
	b.exact = newExactFrontends(host)
	if !b.probed {
		if r.available, err = t.probe(ctx); err != nil {
			return err
		}
		b.probed = true
	}
	t.mu.Lock()
	t.renderer = &r
	t.mu.Unlock()
	if name := r.scheduler.scheduler; !slices.Contains(r.available, name) {
		return missing("ip_vs_"+name, fmt.Errorf("the kernel does not have the scheduler %q", name))
	}
	return nil
}

// checkTag fails if virtual servers of another identity have the same tag: they would be taken for the
// backend's own.
func (b *backend) checkTag() error {
	b.target.mu.Lock()
	all, err := b.target.sets.Names()
	b.target.mu.Unlock()
	if err != nil {
		return fmt.Errorf("ipvs: %w: %w", backends.ErrUnavailable, err)
	}
	for _, name := range all {
		prefix, isServers := strings.CutSuffix(name, setServers.base())
		if prefix == "" || !isServers {
			continue
		}
		prefix = strings.TrimSuffix(prefix, "6-") // of IPv6
		if tag, _ := identify(prefix); tag == b.target.tag && prefix != b.prefix {
			name := strings.ToLower(strings.TrimSuffix(prefix, "-"))
			return fmt.Errorf("ipvs: identity %q: its virtual servers would have the same tag as those of identity %q in this network namespace: choose another name", b.options.Identity.Name, name)
		}
	}
	return nil
}

func (b *backend) makeDeviceAndSets() error {
	b.target.mu.Lock()
	defer b.target.mu.Unlock()
	switch err := b.target.device.prepare(); {
	case errors.Is(err, unix.EOPNOTSUPP):
		return missing("dummy", err)
	case err != nil:
		return fmt.Errorf("ipvs: %w: %w", backends.ErrUnavailable, err)
	}
	return b.createSets()
}

// missing is the error for a kernel without a module, which it cannot load.
func missing(module string, err error) error {
	return fmt.Errorf("ipvs: %w: %w: load the kernel module %s", proxy.ErrUnsupported, err, module)
}

// createSets makes the sets.
func (b *backend) createSets() error {
	for _, f := range b.options.Families {
		for _, s := range allSets() {
			switch err := b.target.sets.Create(ipvs.Set{
				Name: b.target.names[f].set(s), Type: s.typ(), IPv6: f == v1.IPv6Protocol, Marked: s.isMarked(), Limit: b.maxEntries,
			}); {
			case errors.Is(err, ipvs.ErrUnsupported):
				return missing("ip_set_"+strings.NewReplacer(":", "_", ",", "").Replace(s.typ()), fmt.Errorf("ipset: type %s: %w", s.typ(), ipvs.ErrUnsupported))
			case errors.Is(err, ipvs.ErrDiffers):
				return fmt.Errorf("ipvs: %w: %w: another version or program made it: run Cleanup (in the agent -cleanup) with the version that made it, or ipset destroy", backends.ErrUnavailable, err)
			case err != nil:
				return fmt.Errorf("ipvs: %w: %w", backends.ErrUnavailable, err)
			}
		}
	}
	return nil
}

// probe returns the schedulers that the kernel has. It loads their modules.
func (t *target) probe(ctx context.Context) (available []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all, err := t.kernel.Services()
	if err != nil {
		return nil, fmt.Errorf("ipvs: %w: %w", backends.ErrUnavailable, err)
	}
	server := ipvs.ServiceKey{Mark: t.marks.next | markBase}
	for slices.ContainsFunc(all, func(s ipvs.Service) bool { return s.Key.Mark == server.Mark }) {
		server.Mark++ // another program's, or its own
	}
	var list []ipvs.Op
	for _, name := range Schedulers() {
		list = append(list, ipvs.AddService(server, ipvs.ServiceConfig{Scheduler: name, Flags: t.tag}), ipvs.DelService(server))
	}
	failed, err := t.kernel.Do(ctx, list)
	if err == nil {
		available, err = probed(failed)
	}
	if err != nil {
		err = fmt.Errorf("ipvs: %w: %w", backends.ErrUnavailable, err)
	}
	return available, err
}

// probed returns the schedulers that the kernel has. Of each, a virtual server was added and
// removed: only ENOENT means that its module is missing.
func probed(failed []ipvs.Failure) (available []string, err error) {
	missing := map[int]bool{}
	for i := range failed {
		f, isRemoval := &failed[i], failed[i].Index%2 == 1
		switch {
		case !isRemoval && errors.Is(f, unix.ENOENT):
			missing[f.Index/2] = true
		case isRemoval && errors.Is(f, unix.ESRCH): // it was not added, or another program has removed it
		default:
			return nil, fmt.Errorf("probe scheduler %s: %w", Schedulers()[f.Index/2], f)
		}
	}
	for i, name := range Schedulers() {
		if !missing[i] {
			available = append(available, name)
		}
	}
	return available, nil
}

// Cleanup implements [proxy.Backend].
func (b *backend) Cleanup(ctx context.Context) error {
	b.ruled, b.cleaned = nil, true
	if err := b.checkTag(); err != nil {
		return err
	}
	// While virtual servers exist, so must the rules, which protect some from sources that are
	// not allowed, and the sets, by which the backend knows edited ones. Without ip_vs there are none.
	if err := b.removeServers(ctx); err != nil && !errors.Is(err, ipvs.ErrMissing) {
		return err
	}
	errs := []error{b.removeDevice(), b.rules.Cleanup(ctx)}
	for _, f := range b.options.Families {
		for _, s := range allSets() {
			errs = append(errs, b.target.sets.Destroy(b.target.names[f].set(s)))
		}
	}
	return errors.Join(errs...)
}

// removeServers removes the virtual servers.
func (b *backend) removeServers(ctx context.Context) error {
	t := b.target
	if err := t.findKernel(); err != nil {
		return err
	}
	l, err := t.device.find()
	if err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	index := 0
	if l != nil {
		index = l.Attrs().Index
	}
	t.device.index.Store(uint32(index))
	return t.cleanup(ctx)
}

// removeDevice removes the device, after it has restored the settings, unless a backend of another identity
// needs them. If that fails, the device stays without addresses: its alias has the former values.
func (b *backend) removeDevice() error {
	d := &b.target.device
	isAlone, err := d.isAlone()
	if err == nil && isAlone {
		err = b.applySettings(nil)
	}
	if err != nil {
		return errors.Join(err, d.removeAddresses())
	}
	return d.remove()
}

// Abilities implements [proxy.Backend]. IPVS keeps flows, as connection tracking does. IPVS and ipsets
// have no events and no generation, so only reading everything shows whether another program changed
// them: there is no Drifted.
func (b *backend) Abilities() proxy.Abilities {
	t := b.target
	return proxy.Abilities{
		Operations:   func() uint64 { return b.rules.Operations() + t.ops.Load() },
		WaitDrift:    b.WaitDrift,
		Flows:        t.found.Take,
		CheckNode:    nodecheck.Translation,
		CheckLimits:  func(_ *proxy.Node, port *proxy.ServicePort) []*proxy.Problem { return t.renderer.limits(port) },
		CountTraffic: b.CountTraffic,
	}
}

// Close implements [proxy.Backend].
func (b *backend) Close() error {
	var errs []error
	if t := b.target; t != nil {
		errs = append(errs, t.close())
	}
	if b.rules != nil {
		errs = append(errs, b.rules.Close())
	}
	if b.namespace != nil {
		errs = append(errs, b.namespace.Close())
	}
	return errors.Join(errs...)
}
