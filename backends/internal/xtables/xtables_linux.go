package xtables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/internal/nft"
	"github.com/vipkit/vipkit/proxy"
)

// New returns a backend for the network namespace of the calling thread. It needs the
// privileges that the programs need there, and CAP_SYS_ADMIN if threads of the process are in
// other namespaces. If programs are missing, its error wraps [proxy.ErrUnsupported].
func New(c Config) (*Backend, error) {
	if len(c.Families) == 0 {
		return nil, errors.New("iptables: no IP family to serve")
	}
	at, err := currentNamespace()
	if err != nil {
		return nil, fmt.Errorf("iptables: the network namespace: %w", err)
	}
	kernels, conn, err := openKernels(&c, at)
	if err != nil {
		return nil, errors.Join(err, at.file.Close())
	}
	b := &Backend{watcher: kernels[0].watch, held: []io.Closer{at.file}}
	if conn != nil {
		b.held = append(b.held, conn)
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

// openKernels makes one kernel for each family. The generation of nf_tables shows changes
// only if all families use nf_tables, and the flavour may differ by family. The connection
// is nil if no family uses nf_tables.
func openKernels(c *Config, at *namespace) (all []*kernel, conn *nfnetlink.Conn, err error) {
	watched := true
	for _, f := range c.Families {
		p, err := findPrograms(context.Background(), c, f.Family, at)
		if err != nil {
			return nil, nil, err
		}
		watched = watched && p.flavour == NFT
		all = append(all, &kernel{Family: f, names: c.Names, programs: p, around: c.Around, counts: &counts{}})
	}
	if !slices.ContainsFunc(all, (*kernel).usesNFT) {
		return all, nil, nil
	}
	if conn, err = nfnetlink.Open(); err != nil {
		return nil, nil, fmt.Errorf("iptables: %w: %w", proxy.ErrUnsupported, err)
	}
	w := &watch{conn: conn}
	for _, k := range all {
		if k.usesNFT() {
			k.native = &native{conn: conn, family: nft.FamilyOf(k.Family.Family), names: k.names}
		}
		if watched {
			k.watch = w
		}
	}
	return all, conn, nil
}

func (k *kernel) usesNFT() bool { return k.programs.flavour == NFT }
