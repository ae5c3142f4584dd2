package nftables

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// New gives a backend that programs the network namespace of the calling
// thread. It needs CAP_NET_ADMIN there, and Linux 5.13 or later; what is missing
// shows as [proxy.ErrUnsupported], here or at the first Apply. The backend counts
// its operations ([proxy.OperationCounter]).
func New(options Options) (proxy.Backend, error) {
	k, err := newKernel(options)
	if err != nil {
		return nil, err
	}
	return backends.New(k.book.render, k), nil
}

func newKernel(options Options) (*kernel, error) {
	identity, err := options.Identity.Complete()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	options.Identity = identity
	for _, f := range options.Families {
		if f != v1.IPv4Protocol && f != v1.IPv6Protocol {
			return nil, fmt.Errorf("nftables: unknown IP family %q", f)
		}
	}
	if options.AffinityClients == 0 {
		options.AffinityClients = DefaultAffinityClients
	}
	conn, err := nfnetlink.Open()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w: %w", proxy.ErrUnsupported, err)
	}
	monitor, err := conn.Monitor(identity.Name, identity.Name+twinSuffix)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables: %w: %w", proxy.ErrUnsupported, err), conn.Close())
	}
	return &kernel{
		book: &book{options: options}, conn: conn, monitor: monitor, transact: monitor.Commit,
		limits: limits{list: listLimit, set: leastSize}, slots: map[slotPool][]slot{},
	}, nil
}
