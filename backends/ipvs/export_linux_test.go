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
	"github.com/vipkit/vipkit/proxy"
)

// NewFaulty returns a backend that passes each commit to around, which calls commit or not.
func NewFaulty(o Options, around func(commit func() error) error) (proxy.Backend, error) {
	return newFaulty(o, around)
}

// newSkipping returns a backend whose listings lack objects.
func newSkipping(o Options, lacks func(key) bool) (*backend, error) {
	b, err := newBackend(o)
	if err == nil {
		b.services = backends.New(b.target.Render, backends.Target[key, value](skipping{b.target, lacks}))
	}
	return b, err
}

func newFaulty(o Options, around func(commit func() error) error) (*backend, error) {
	b, err := newBackend(o)
	if err != nil {
		return nil, err
	}
	b.services = backends.New(b.target.Render, backendtest.Faulty[key, value](b.target, around))
	c := b.ruleset()
	c.Around = around
	err = b.rules.Close()
	if err == nil {
		b.rules, err = xtables.New(c)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
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
	b, err := newBackend(o)
	if err != nil {
		return "", err
	}
	defer b.Close() //nolint:errcheck // only sockets
	owns := func(chain string) bool { return strings.HasPrefix(chain, b.prefix+"IPVS-") }
	text, err := stagetest.DumpChains(ctx, string(o.Flavour), owns, func(string) bool { return false })
	if err != nil {
		return "", err
	}
	device, err := b.target.device.find()
	if err != nil {
		return "", err
	}
	if device != nil {
		text += "device " + device.Attrs().Name + "\n"
		b.target.device.index.Store(uint32(device.Attrs().Index))
	}
	sets, err := b.target.sets.Names()
	if err != nil {
		return "", err
	}
	sets = slices.DeleteFunc(sets, func(name string) bool { return !strings.HasPrefix(name, b.prefix) })
	for _, name := range sets {
		text += "set " + name + "\n"
	}
	if len(sets) == 0 {
		return text, nil
	}
	l, err := b.target.list()
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
