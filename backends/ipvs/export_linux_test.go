package ipvs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// NewFaulty returns a backend that passes each commit to around, which calls commit or not.
func NewFaulty(o Options, around func(commit func() error) error) (proxy.Backend, error) {
	return newFaulty(o, around)
}

// backend is a backend that knows nothing of other kinds, with its target.
type backend struct {
	proxy.Backend
	target *target
}

// newBackendOver returns a backend whose target is what around makes of the real one.
func newBackendOver(o Options, around func(*target) backends.Target[key, value]) (*backend, error) {
	t, err := newTarget(o, ipvs.Open)
	if err != nil {
		return nil, err
	}
	return &backend{backends.New(t.render, around(t)), t}, nil
}

func newBackend(o Options) (*backend, error) {
	return newBackendOver(o, func(t *target) backends.Target[key, value] { return t })
}

// newSkipping returns a backend whose listings lack objects.
func newSkipping(o Options, lacks func(key) bool) (*backend, error) {
	return newBackendOver(o, func(t *target) backends.Target[key, value] { return skipping{t, lacks} })
}

func newFaulty(o Options, around func(commit func() error) error) (*backend, error) {
	return newBackendOver(o, func(t *target) backends.Target[key, value] { return backendtest.Faulty[key, value](t, around) })
}

// disturbRules passes each commit of the constant rules to around.
func (b *backend) disturbRules(around func(commit func() error) error) error {
	c := b.target.ruleset()
	c.Around = around
	err := b.target.rules.Close()
	if err == nil {
		b.target.rules.Backend, err = xtables.New(c)
	}
	return err
}

// skipping is a target whose listing lacks objects.
type skipping struct {
	*target
	lacks func(key) bool
}

// List implements [backends.Target].
func (f skipping) List(ctx context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		for o, err := range f.target.List(ctx) {
			if f.lacks(o.Key) && err == nil {
				continue
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

// Prepare makes the tables of iptables in the network namespace of the thread: the rest of
// the system has them too.
func Prepare(ctx context.Context, o Options) error {
	const all = ":PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n"
	return stagetest.MakeHooks(ctx, string(o.Flavour), "*nat\n"+all+"*mangle\n"+all+"*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n")
}

// Dump returns what backends of these options have programmed in the network namespace of the
// thread, without real servers that drain.
func Dump(ctx context.Context, o Options) (string, error) {
	t, err := newTarget(o, ipvs.Open)
	if err != nil {
		return "", err
	}
	defer t.Close() //nolint:errcheck // only sockets
	owns := func(chain string) bool { return strings.HasPrefix(chain, t.prefix+"IPVS-") }
	text, err := stagetest.DumpChains(ctx, string(o.Flavour), owns, func(string) bool { return false })
	if err != nil {
		return "", err
	}
	device, err := t.device.find()
	if err != nil {
		return "", err
	}
	if device != nil {
		text += "device " + device.Attrs().Name + "\n"
	}
	hasSets := false
	for _, f := range t.options.Families {
		for _, id := range allSets() {
			name := setName(t.prefix, f, id)
			switch _, err := t.sets.Entries(name); {
			case err == nil:
				text += "set " + name + "\n"
				hasSets = true
			case !errors.Is(err, ipvs.ErrNotExist):
				return "", err
			}
		}
	}
	if !hasSets {
		return text, nil
	}
	own, _, _, err := t.device.addresses()
	if err != nil {
		return "", err
	}
	l, err := t.list(own)
	if err != nil {
		return "", err
	}
	var lines []string
	for _, o := range l.found {
		lines = append(lines, fmt.Sprintf("%v %s %d %v %v %v %v %+v\n", o.Key.kind, o.Key.set.base(), o.Key.protocol, o.Key.inside, o.Key.addr, o.Key.real, o.Key.source, o.Value))
	}
	slices.Sort(lines)
	return text + strings.Join(lines, ""), nil
}
