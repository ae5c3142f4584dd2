package ipvs

import (
	"errors"
	"fmt"
	"strings"

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
	t, err := newTarget(options, ipvs.Open)
	if err != nil {
		return nil, err
	}
	b, err := kinds.Among(backends.New(t.render, backends.Target[key, value](t)), t.options.Identity, kinds.IPVS)
	if err != nil {
		return nil, fmt.Errorf("ipvs: %w", err)
	}
	return b, nil
}

// newTarget returns a target with a connection to IPVS.
func newTarget(options Options, openKernel func() (*ipvs.Conn, error)) (t *target, err error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	r, err := newRenderer(o)
	if err != nil {
		return nil, err
	}
	t = &target{renderer: r, maxEntries: maxEntries, exact: newExactFrontends(nil), drainer: drainer{timeout: o.DrainTimeout, of: draining{}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
			t = nil
		}
	}()
	if t.device.at, err = netns.Current(); err != nil {
		return t, fmt.Errorf("ipvs: the network namespace: %w", err)
	}
	t.device.name = strings.ToLower(r.prefix) + ipaddr.ServiceDeviceSuffix
	t.marks.limit = markCount
	_, t.marks.next = identify(r.prefix)
	if t.kernel, err = openKernel(); err != nil {
		return t, unsupported(err)
	}
	if t.sets, err = ipvs.OpenSets(); err != nil {
		return t, unsupported(err)
	}
	t.rules.Backend, err = xtables.New(r.ruleset())
	return t, err
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
