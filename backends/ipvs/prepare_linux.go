package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// PrepareNode does what the first Apply of the backend of these options does before it writes rules:
// it makes the device and the sets, and writes the kernel's settings. It is for agents that run
// with a read-only /proc/sys, as in a container: a process with more privileges calls PrepareNode
// before the agent starts. If the node lacks a part of IPVS, PrepareNode fails with [proxy.ErrUnsupported].
func PrepareNode(ctx context.Context, o Options) (err error) {
	t, err := newTarget(o, ipvs.Open)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	return t.prepare(ctx)
}

// Facts is Facts of [backends.TargetAbilities].
func (t *target) Facts(want proxy.Snapshot) any {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.exact.facts.taken = t.exact.taken(want)
	return t.exact.facts
}

// prepare makes the device and the sets, reads the addresses of the node and which schedulers the kernel has, and
// writes the settings of the kernel.
func (t *target) prepare(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.checkTag(); err != nil {
		return err
	}
	switch err := t.device.prepare(); {
	case errors.Is(err, unix.EOPNOTSUPP):
		return missing("dummy", err)
	case err != nil:
		return fmt.Errorf("ipvs: %w: %w", backends.ErrUnavailable, err)
	}
	if err := t.createSets(); err != nil {
		return err
	}
	_, host, err := t.device.addresses()
	if err != nil {
		return fmt.Errorf("ipvs: %w: addresses of the node: %w", backends.ErrUnavailable, err)
	}
	schedulers := t.exact.schedulers
	if schedulers == nil { // only once, because it loads modules
		if schedulers, err = t.probe(ctx); err != nil {
			return err
		}
	}
	t.exact = newExactFrontends(host)
	t.exact.schedulers = schedulers
	if name := t.scheduler.scheduler; !slices.Contains(t.exact.schedulers, name) {
		return missing("ip_vs_"+name, fmt.Errorf("the kernel does not have the scheduler %q", name))
	}
	if err := t.writeSettings(); err != nil {
		return fmt.Errorf("ipvs: %w: %w", backends.ErrUnavailable, err)
	}
	return nil
}

// checkTag fails if virtual servers of another identity have the same tag: they would be taken for the
// backend's own. It requires t.mu.
func (t *target) checkTag() error {
	all, err := t.sets.Names()
	if err != nil {
		return fmt.Errorf("ipvs: %w: %w", backends.ErrUnavailable, err)
	}
	for _, name := range all {
		prefix, isServers := strings.CutSuffix(name, setServers.base())
		if prefix == "" || !isServers {
			continue
		}
		prefix = strings.TrimSuffix(prefix, "6-") // of IPv6
		if tag, _ := identify(prefix); tag == t.tag && prefix != t.prefix {
			name := strings.ToLower(strings.TrimSuffix(prefix, "-"))
			return fmt.Errorf("ipvs: identity %q: its virtual servers would have the same tag as the virtual servers of identity %q in this network namespace: choose another name", t.options.Identity.Name, name)
		}
	}
	return nil
}

// missing is the error for a kernel without a module, which it cannot load.
func missing(module string, err error) error {
	return fmt.Errorf("ipvs: %w: %w: load the kernel module %s", proxy.ErrUnsupported, err, module)
}

// createSets makes the sets. It requires t.mu.
func (t *target) createSets() error {
	for _, f := range t.options.Families {
		for _, s := range allSets() {
			switch err := t.sets.Create(ipvs.Set{
				Name: t.names[f].set(s), Type: s.typ(), IPv6: f == v1.IPv6Protocol, Marked: s.isMarked(), Limit: t.maxEntries,
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

// probe returns the schedulers that the kernel has. It loads their modules, and requires t.mu.
func (t *target) probe(ctx context.Context) (available []string, err error) {
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
