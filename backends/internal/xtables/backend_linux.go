package xtables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/legacytables"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// Backend is a [proxy.Backend]. It has one part for each IP family, with tables and programs of its own, so that a
// failure of one does not affect the other.
type Backend struct {
	at *netns.NS
	// families are backends with kernels as their targets.
	families []proxy.Backend
	kernels  []*kernel
	watchers []watcher
	// nft reads the tables of all families that use nf_tables, and commits watches them. Both are nil if
	// none does.
	nft     *nfnetlink.Conn
	commits *nfnetlink.Monitor
	// closers are what Close closes.
	closers []io.Closer
	// lacksIPv6 says that IPv6 is left out, because the kernel does not have it.
	lacksIPv6 bool
}

// New returns a backend for the network namespace of the calling thread. It needs the
// privileges that the programs need there, and CAP_SYS_ADMIN if threads of the process are in
// other namespaces. If programs are missing, its error wraps [proxy.ErrUnsupported].
func New(c Config) (*Backend, error) {
	if len(c.Families) == 0 {
		return nil, errors.New("iptables: no IP family to serve")
	}
	at, err := netns.Current(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	b := &Backend{at: at, closers: []io.Closer{at}}
	for _, f := range c.Families {
		if err := b.add(&c, f); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	return b, nil
}

// add adds a family. Families may have different flavours.
func (b *Backend) add(c *Config, f Family) error {
	p, err := findPrograms(context.Background(), c, f.Family, b.at)
	if err != nil {
		return err
	}
	if p.flavour == Legacy && f.Family == v1.IPv6Protocol && len(c.Families) > 1 && !hasIPv6() {
		b.lacksIPv6 = true
		return nil
	}
	k := &kernel{Family: f, names: c.Names, programs: p, around: c.Around}
	if k.around == nil {
		k.around = func(run func() error) error { return run() }
	}
	if p.flavour == Legacy {
		w := &legacyWatch{look: func() map[Table]legacytables.Info { all, _ := p.sizes(c.Names); return all }}
		k.watch, b.watchers, b.closers = w, append(b.watchers, w), append(b.closers, w)
	} else {
		if err := b.openNFT(c.Names); err != nil {
			return fmt.Errorf("iptables: %w: %w", proxy.ErrUnsupported, err)
		}
		k.native, k.watch = &native{conn: b.nft, family: nft.FamilyOf(f.Family), names: c.Names}, b.commits
		k.piece = pieceSize
	}
	b.kernels = append(b.kernels, k)
	b.families = append(b.families, backends.New(k.Render, backends.Target[Key, string](k)))
	return nil
}

// openNFT opens what families with the flavour nft share, unless it is open.
func (b *Backend) openNFT(n Names) (err error) {
	if b.commits != nil {
		return nil
	}
	if b.nft, err = nfnetlink.Open(); err != nil {
		return err
	}
	b.closers = append(b.closers, b.nft)
	var names []string
	for _, t := range n.tables() {
		names = append(names, t.String())
	}
	if b.commits, err = b.nft.Monitor(names...); err == nil {
		b.watchers, b.closers = append(b.watchers, b.commits), append(b.closers, b.commits)
	}
	return err
}

// hasIPv6 reports whether the kernel has IPv6: with the boot parameter ipv6.disable=1, it makes no
// sockets of IPv6, and iptables finds no tables. nf_tables has them nevertheless.
func hasIPv6() bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd) // nothing was sent
	}
	return !errors.Is(err, unix.EAFNOSUPPORT)
}

// Tables returns the tables of nf_tables that a table of iptables is, in the flavour that uses them.
func (b *Backend) Tables(t Table) (all []nfnetlink.Table) {
	for _, k := range b.kernels {
		if k.native != nil {
			all = append(all, k.native.table(t))
		}
	}
	return all
}

// Flavours returns the flavours of the tables that the backend writes.
func (b *Backend) Flavours() (all []Flavour) {
	for _, k := range b.kernels {
		if !slices.Contains(all, k.programs.flavour) {
			all = append(all, k.programs.flavour)
		}
	}
	return all
}

// LacksIPv6 reports whether Services of IPv6 are not served because the kernel has no IPv6.
func (b *Backend) LacksIPv6() bool { return b.lacksIPv6 }

// Apply implements [proxy.Backend].
func (b *Backend) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	if node := new.Node(); node != nil {
		if err := CheckInterfaces(node.LocalTraffic); err != nil {
			return err
		}
	}
	for _, k := range b.kernels {
		k.counts.begin()
		if !old.IsZero() {
			continue
		}
		if err := k.refresh(ctx); err != nil {
			return err
		}
		_ = k.watch.Begin() // after an error, it has noticed something
	}
	errs := make([]error, len(b.families))
	for i, f := range b.families {
		errs[i] = f.Apply(ctx, old, new)
	}
	return backends.JoinErrors(old, errs...)
}

// Abilities implements [proxy.Backend]. Operations are rules and chains that were written or removed.
func (b *Backend) Abilities() proxy.Abilities {
	return proxy.Abilities{
		Operations: b.Operations, Drifted: b.Drifted, WaitDrift: b.waitDrift, FoundFrontends: b.flows, CheckLimits: b.checkLimits, CountRules: b.countRules,
	}
}

// waitDrift waits for changes of tables by other programs. In the legacy flavour it notices only changes
// of the number of rules.
func (b *Backend) waitDrift(ctx context.Context) error {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	results := make(chan error, len(b.watchers))
	var all sync.WaitGroup
	for _, w := range b.watchers {
		all.Go(func() { results <- w.Wait(waiting) })
	}
	first := <-results
	stop()
	all.Wait()
	return first
}

// Drifted is Drifted of [proxy.Abilities]. A missing extension may have become available.
func (b *Backend) Drifted(context.Context) bool {
	return slices.ContainsFunc(b.kernels, func(k *kernel) bool { return len(k.missingExtensions) > 0 || k.watch.Noticed() })
}

func (b *Backend) flows() (all []*proxy.ServicePort) {
	for _, k := range b.kernels {
		all = append(all, k.finds.Take()...)
	}
	return all
}

func (b *Backend) checkLimits(_ *proxy.Node, port *proxy.ServicePort) []*proxy.Problem {
	for _, k := range b.kernels {
		if port.Name.Family == k.Family.Family && k.Family.CheckLimits != nil {
			return k.Family.CheckLimits(port)
		}
	}
	return nil
}

func (b *Backend) countRules() (all []proxy.RuleCount) {
	for _, k := range b.kernels {
		exist, last := k.counts.now()
		for _, t := range k.names.tables() {
			all = append(all, proxy.RuleCount{Family: k.Family.Family, Table: t.String(), Existing: exist[t], Written: last[t]})
		}
	}
	return all
}

// Operations is Operations of [proxy.Abilities].
func (b *Backend) Operations() (n uint64) {
	for _, k := range b.kernels {
		n += k.ops.Load()
	}
	return n
}

// Close implements [proxy.Backend]. It closes in reverse, as what was opened later uses what was opened before.
func (b *Backend) Close() error {
	var errs []error
	for _, c := range slices.Backward(b.closers) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Cleanup implements [proxy.Backend].
func (b *Backend) Cleanup(ctx context.Context) error {
	var errs []error
	for _, f := range b.families {
		errs = append(errs, f.Cleanup(ctx))
	}
	return errors.Join(errs...)
}
