package xtables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

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
	b := &Backend{held: []io.Closer{at}}
	kernels, err := b.open(&c, at)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	for _, k := range kernels {
		b.refresh = append(b.refresh, k.refresh)
		b.kernels = append(b.kernels, counted{k.Family.Family, k.names, k.counts})
		if !slices.Contains(b.flavours, k.programs.flavour) {
			b.flavours = append(b.flavours, k.programs.flavour)
		}
		b.families = append(b.families, backends.New(k.Render, backends.Target[Key, string](k)))
	}
	return b, nil
}

// open makes one kernel for each family, whose flavours may differ, and a watch of each flavour.
func (b *Backend) open(c *Config, at *netns.NS) (all []*kernel, err error) {
	legacy := map[v1.IPFamily]func() ([]Table, error){}
	byNFT := map[nfnetlink.Family]bool{}
	for _, f := range c.Families {
		p, err := findPrograms(context.Background(), c, f.Family, at)
		if err != nil {
			return nil, err
		}
		if p.flavour == Legacy && f.Family == v1.IPv6Protocol && len(c.Families) > 1 && !hasIPv6() {
			b.lacksIPv6 = true
			continue
		}
		k := &kernel{Family: f, names: c.Names, programs: p, around: c.Around, counts: &counts{}}
		all = append(all, k)
		if k.usesNFT() {
			byNFT[nft.FamilyOf(f.Family)] = true
		} else {
			legacy[f.Family] = func() ([]Table, error) { return k.programs.tables(c.Names) }
		}
	}
	if err := b.watchLegacy(all, legacy); err != nil {
		return nil, fmt.Errorf("iptables: %w: %w", proxy.ErrUnsupported, err)
	}
	if err := b.watchNative(c, all, byNFT); err != nil {
		return nil, fmt.Errorf("iptables: %w: %w", proxy.ErrUnsupported, err)
	}
	return all, nil
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

func (b *Backend) watchLegacy(all []*kernel, exist map[v1.IPFamily]func() ([]Table, error)) error {
	if len(exist) == 0 {
		return nil
	}
	w, err := newLegacyWatch(exist)
	if err != nil {
		return err
	}
	b.watchers, b.held = append(b.watchers, w), append(b.held, w)
	for _, k := range all {
		if !k.usesNFT() {
			k.watch = w
		}
	}
	return nil
}

func (b *Backend) watchNative(c *Config, all []*kernel, families map[nfnetlink.Family]bool) error {
	if len(families) == 0 {
		return nil
	}
	conn, err := nfnetlink.Open()
	if err != nil {
		return err
	}
	b.held = append(b.held, conn)
	w, err := newWatch(conn, c.Names, families)
	if err != nil {
		return err
	}
	b.watchers, b.held = append(b.watchers, w), append(b.held, w)
	for _, k := range all {
		if k.usesNFT() {
			k.native, k.watch = &native{conn: conn, family: nft.FamilyOf(k.Family.Family), names: k.names}, w
		}
	}
	return nil
}

// Tables returns the tables of nf_tables that a table of iptables is, in the flavour that uses them.
func (b *Backend) Tables(t Table) (all []nfnetlink.Table) {
	for _, w := range b.watchers {
		if w, is := w.(*watch); is {
			for family := range w.families {
				all = append(all, nfnetlink.Table{Family: family, Name: t.String()})
			}
		}
	}
	return all
}

func (k *kernel) usesNFT() bool { return k.programs.flavour == NFT }
