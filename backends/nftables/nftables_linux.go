package nftables

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// New returns a backend that programs the network namespace of the calling
// thread. It needs CAP_NET_ADMIN there, and Linux 5.13 or later; New or the first Apply
// returns [proxy.ErrUnsupported] if one is missing. The backend has open sockets until it is closed.
func New(options Options) (proxy.Backend, error) {
	k, err := newKernel(options)
	if err != nil {
		return nil, err
	}
	return newBackend(k, k)
}

// newBackend returns the backend of a kernel. Tests may have another target around it.
func newBackend(k *kernel, target backends.Target[key, value]) (proxy.Backend, error) {
	b, err := kinds.Among(backends.New(k.render, target), k.options.Identity, kinds.NFTables)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return b, nil
}

func newKernel(options Options) (*kernel, error) {
	identity, err := options.Identity.Complete(kinds.NFTables.Defaults())
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	options.Identity = identity
	for _, f := range options.Families {
		if f != v1.IPv4Protocol && f != v1.IPv6Protocol {
			return nil, fmt.Errorf("nftables: unknown IP family %q", f)
		}
	}
	conn, err := nft.Open(identity.Name, identity.Name+secondSuffix)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	k := &kernel{renderer: newRenderer(options), Conn: conn, limits: limits{list: listLimit, set: leastSize}}
	k.tables = k.newTables()
	return k, nil
}
