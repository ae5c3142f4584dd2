package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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
	_, err = t.prepare(ctx)
	return err
}

// Facts is Facts of [backends.TargetAbilities].
func (t *target) Facts(want proxy.Snapshot) any {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.exact.facts.taken = t.exact.taken(want)
	return t.exact.facts
}

// prepare makes the device and the sets, reads the addresses of the node and which schedulers the kernel has, and
// writes the settings of the kernel. It returns the addresses of the device.
func (t *target) prepare(ctx context.Context) (own []netip.Addr, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	own, host, err := t.device.prepare()
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, missing("dummy", err)
	case err != nil:
		return nil, unavailable(err)
	}
	if err := t.createSets(); err != nil {
		return nil, err
	}
	schedulers := t.exact.schedulers
	if schedulers == nil { // only once, because it loads modules
		if schedulers, err = t.probe(); err != nil {
			return nil, unavailable(err)
		}
	}
	t.exact = newExactFrontends(host)
	t.exact.schedulers = schedulers
	if name := t.scheduler.scheduler; !slices.Contains(t.exact.schedulers, name) {
		return nil, missing("ip_vs_"+name, fmt.Errorf("the kernel does not have the scheduler %q", name))
	}
	if err := t.writeSettings(); err != nil {
		return nil, unavailable(err)
	}
	return own, nil
}

// unavailable is the error of what may work later.
func unavailable(err error) error { return fmt.Errorf("ipvs: %w: %w", backends.ErrUnavailable, err) }

// missing is the error for a kernel without a module, which it cannot load.
func missing(module string, err error) error {
	return fmt.Errorf("ipvs: %w: %w: load the kernel module %s", proxy.ErrUnsupported, err, module)
}

// createSets makes the sets. It requires t.mu.
func (t *target) createSets() error {
	for _, f := range t.options.Families {
		for _, s := range allSets() {
			switch err := t.sets.Create(ipvs.Set{
				Name: setName(t.prefix, f, s), Type: s.typ(), IPv6: f == v1.IPv6Protocol, Marked: s.isMarked(), Limit: t.maxEntries,
			}); {
			case errors.Is(err, ipvs.ErrUnsupported):
				return missing("ip_set_"+strings.NewReplacer(":", "_", ",", "").Replace(s.typ()), fmt.Errorf("ipset: type %s: %w", s.typ(), ipvs.ErrUnsupported))
			case errors.Is(err, ipvs.ErrDiffers):
				return fmt.Errorf("ipvs: %w: %w: another version or program made it: run Cleanup (in the agent -cleanup) with the version that made it, or ipset destroy", backends.ErrUnavailable, err)
			case err != nil:
				return unavailable(err)
			}
		}
	}
	return nil
}

// probe returns the schedulers that the kernel has. It loads their modules, and requires t.mu.
func (t *target) probe() (available []string, err error) {
	all, err := t.kernel.Services()
	if err != nil {
		return nil, err
	}
	server := ipvs.ServiceKey{Mark: t.marks.next | markBase}
	for slices.ContainsFunc(all, func(s ipvs.Service) bool { return s.Key.Mark == server.Mark }) {
		server.Mark++ // another program's, or its own
	}
	return probed(func(verb ipvs.Verb, name string) error {
		return t.kernel.Do(ipvs.Op{Verb: verb, Key: server, Config: ipvs.ServiceConfig{Scheduler: name, Flags: t.tag}})
	})
}

// probed returns the schedulers by which a virtual server can be added and removed. Only ENOENT means that the module of
// a scheduler is missing; another program may have removed the virtual server.
func probed(do func(ipvs.Verb, string) error) (available []string, err error) {
	for _, name := range Schedulers() {
		err := do(ipvs.Add, name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = do(ipvs.Remove, name)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("probe scheduler %s: %w", name, err)
		}
		available = append(available, name)
	}
	return available, nil
}
