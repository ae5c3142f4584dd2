package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/proxy"
)

// New returns a backend that programs the network namespace of the calling thread. It needs
// CAP_NET_ADMIN in the initial user namespace, CAP_NET_RAW, which iptables needs for its match
// set, and the programs iptables-restore and iptables-save. If parts of the kernel, programs or
// privileges are missing, New or the first Apply fails with [proxy.ErrUnsupported].
//
// Operations of [proxy.Abilities] are entries of sets, addresses, virtual servers and real servers that
// were added, changed or removed, and rules. The backend has sockets until it is closed; what then still
// drains stays until another process of the same identity removes it.
func New(options Options) (proxy.Backend, error) {
	b, err := newBackend(options)
	if err != nil {
		return nil, err
	}
	among, err := kinds.Among(b, b.options.Identity, kinds.IPVS)
	if err != nil {
		return nil, fmt.Errorf("ipvs: %w", err)
	}
	return among, nil
}

// Cleanup removes everything that backends of these options have programmed in the network namespace
// of the calling thread, as the Cleanup of such a backend does. It needs what [New] needs, except for
// IPVS: if ip_vs has been unloaded, and all virtual servers with it, Cleanup removes the rest and does not
// load it again.
func Cleanup(ctx context.Context, options Options) error {
	b, err := newBackendOn(options, openIfLoaded)
	if err != nil {
		return err
	}
	return errors.Join(b.Cleanup(ctx), b.Close())
}

// openIfLoaded opens a connection to IPVS, or returns none if ip_vs has been unloaded.
func openIfLoaded() (*ipvs.Conn, error) {
	if isUnloaded("/proc/net") {
		return nil, nil //nolint:nilnil // a target may lack it
	}
	return ipvs.Open()
}

// isUnloaded reports whether a folder has files about the network, and none about IPVS. In some
// containers /proc has none of them, whatever the kernel has.
func isUnloaded(folder string) bool {
	_, any := os.Stat(filepath.Join(folder, "dev"))
	_, own := os.Stat(filepath.Join(folder, "ip_vs"))
	return any == nil && errors.Is(own, fs.ErrNotExist)
}

func newBackend(options Options) (*backend, error) { return newBackendOn(options, ipvs.Open) }

// newBackendOn returns a backend with a connection to IPVS.
func newBackendOn(options Options, openKernel func() (*ipvs.Conn, error)) (b *backend, err error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	b = &backend{options: o, prefix: xtables.Prefix(o.Identity.Name), maxEntries: maxEntries, exact: newExactFrontends(nil), changes: changes{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
			b = nil
		}
	}()
	if b.namespace, err = netns.Current(); err != nil {
		return b, fmt.Errorf("ipvs: the network namespace: %w", err)
	}
	scheduler, err := parseScheduler(o.Scheduler)
	if err != nil {
		return b, err
	}
	t := &target{
		renderer: &renderer{families: o.Families, scheduler: scheduler}, names: map[v1.IPFamily]names{},
		drainer: drainer{timeout: o.DrainTimeout, of: draining{}},
	}
	t.marks.limit = markCount
	t.tag, t.marks.next = identify(b.prefix)
	b.target = t
	for _, f := range o.Families {
		t.names[f] = newNames(b.prefix, f)
	}
	if t.kernel, err = openKernel(); err != nil {
		return b, unsupported(err)
	}
	if t.sets, err = ipvs.OpenSets(); err != nil {
		return b, unsupported(err)
	}
	t.device.name, t.device.handle = strings.ToLower(b.prefix)+ipaddr.ServiceDeviceSuffix, b.namespace.Netlink()
	if b.rules, err = xtables.New(b.ruleset()); err != nil {
		return b, err
	}
	b.services = backends.New(t.Render, t)
	return b, nil
}

// unsupported explains why a part of the kernel cannot be reached.
func unsupported(err error) error {
	switch {
	case errors.Is(err, ipvs.ErrMissing):
		return missing("ip_vs", err)
	case errors.Is(err, ipvs.ErrUnsupported):
		return missing("ip_set", err)
	}
	return fmt.Errorf("ipvs: %w: %w", proxy.ErrUnsupported, err)
}

// ruleset returns what the constant rules need.
func (b *backend) ruleset() xtables.Config {
	c := xtables.Config{
		Options: xtables.Options{Flavour: xtables.Flavour(b.options.Flavour), LockWait: b.options.LockWait},
		Names:   xtables.Names{Prefix: b.prefix, Chains: chains(), Uncommented: true},
	}
	for _, f := range b.options.Families {
		w := ruleWriter{family: f, sets: newNames(b.prefix, f), prefix: b.prefix, mark: b.options.Identity.Mark}
		c.Families = append(c.Families, xtables.Family{
			Family: f, Extensions: w.extensions(),
			Render: func(node *proxy.Node, port *proxy.ServicePort, out []xtables.Object) []xtables.Object {
				if port != nil {
					return out
				}
				w := w
				w.node, w.out = node, out
				return w.write()
			},
		})
	}
	return c
}
