package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// New gives a backend that programs the network namespace of the calling
// thread. It needs CAP_NET_ADMIN there, for the legacy flavour also CAP_NET_RAW, and
// CAP_SYS_ADMIN if threads of the process are in other namespaces. What is missing,
// programs to begin with, shows as [proxy.ErrUnsupported], here or at the first Apply. The backend counts its
// operations ([proxy.OperationCounter]): rules and chains written or removed. In
// the flavour that uses nf_tables it can tell at no cost that nobody else was
// there ([proxy.DriftChecker]); in the legacy one, or where the IP families differ, it
// always says that somebody may have been.
func New(options Options) (proxy.Backend, error) {
	return newBackend(options, func(k *kernel) backends.Target[key, string] { return k })
}

// newBackend makes a backend with something around its edges to the kernel.
func newBackend(options Options, around func(*kernel) backends.Target[key, string]) (proxy.Backend, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	at, err := here()
	if err != nil {
		return nil, fmt.Errorf("iptables: the network namespace: %w", err)
	}
	kernels, err := openKernels(&o, at)
	if err != nil {
		return nil, err
	}
	b := &backend{watcher: kernels[0].watch}
	var renderers []*renderer
	for _, k := range kernels {
		renderers = append(renderers, k.renderer)
		b.extensions = append(b.extensions, k.refresh)
		b.families = append(b.families, backends.New(k.renderer.render, around(k)))
	}
	b.settings = func() error {
		liberal, err := at.isLiberal()
		for _, r := range renderers {
			r.liberal = liberal
		}
		return err
	}
	if o.AffinityClients > 0 {
		b.memory = &memory{renderers: renderers, ask: rememberedClients}
	}
	return b, nil
}

// openKernels gives the edges of all families. Where one is of the legacy flavour, as
// alternatives may be set, the generation of nf_tables does not tell about all of them.
func openKernels(o *Options, at *place) (all []*kernel, err error) {
	var conn *nfnetlink.Conn
	watched := true
	for _, family := range o.Families {
		p, err := findPrograms(context.Background(), o, family, at)
		if err != nil {
			return nil, err
		}
		k := &kernel{renderer: newRenderer(*o, family), programs: p, roster: roster{}}
		watched = watched && p.flavour == NFT
		if p.flavour == NFT && conn == nil {
			if conn, err = nfnetlink.Open(); err != nil {
				return nil, fmt.Errorf("iptables: %w: %w", proxy.ErrUnsupported, err)
			}
		}
		if p.flavour == NFT {
			k.native = &native{conn: conn, family: nativeFamily(family), names: k.renderer.names}
		}
		all = append(all, k)
	}
	if watched {
		w := &watch{conn: conn}
		for _, k := range all {
			k.watch = w
		}
	}
	return all, nil
}

// isLiberal reports whether connection tracking in the namespace takes TCP packets for
// valid wherever their numbers are.
func (p *place) isLiberal() (is bool, err error) {
	err = p.do(func() (err error) {
		is, err = saysYes(os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"))
		return err
	})
	return is, err
}

// saysYes takes in a setting of the kernel's. It is off where nobody knows it: nothing
// is tracked there yet.
func saysYes(text []byte, err error) (bool, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && strings.TrimSpace(string(text)) != "0", err
}

// rememberedClients is how many clients of an endpoint the kernel remembers; 0
// where that is not known, as the module is not loaded.
func rememberedClients() uint32 {
	text, err := os.ReadFile("/sys/module/xt_recent/parameters/ip_list_tot")
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}
